#pragma once
#include <cstddef>
#include <memory>
#include <string_view>

#include <c10/core/Allocator.h>

namespace cleave {

/// Memory of tensors on the processor that is used again instead of given back: a training step
/// asks for the same sizes each time, and pages that the system hands out anew are cleared and
/// mapped first, which took an eighth of a step.
///
/// Blocks of 64 KiB and more are kept by the thread that let go of them, as long as they and what
/// it has in use, which is what it took, are together at most a tenth more than what it had in use
/// at its most, or they are no more than 2 MiB; and in huge pages where the system has them. A
/// thread's blocks go back to the system when it ends.
///
/// With CLEAVE_POISON_MEMORY=1 in the environment (the tests), every floating-point number in new
/// and in freed memory is NaN, so that a read of either shows; then the whole process uses the
/// cache from its start. Under the address sanitizer no block is kept, for the same reason.
class MemoryCache : public c10::Allocator {
 public:
  /// Smaller ones are the C library's.
  static constexpr size_t kLeastBytes = size_t{64} << 10;

  /// How the message of allocate()'s Error begins.
  static constexpr std::string_view kNoMemory = "no memory for a tensor";

  /// Throws Error(kMemory).
  c10::DataPtr allocate(size_t num_bytes) override;
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t num_bytes) const override;

  /// What this thread keeps without using it, in bytes.
  [[nodiscard]] static size_t kept_bytes();
};

/// From here on libtorch takes the processor's memory from a MemoryCache, for the whole process;
/// tensors that exist stay as they are. Does nothing the second time.
void use_memory_cache();

}  // namespace cleave
