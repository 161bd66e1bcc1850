#pragma once
#include <cstddef>
#include <memory>
#include <string_view>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

namespace cleave::inline torch_internals {

/// Caching allocator for CPU tensors. A training step allocates the same sizes each time; without a
/// cache the system clears and maps new pages, which took an eighth of a step.
///
/// Each thread keeps the blocks of 64 KiB and more that it frees. It keeps at most 1.1 times its
/// peak use minus its current use, but always up to 2 MiB; "use" counts the blocks that this thread
/// allocated. Blocks are in huge pages where the system supports them, and go back to the system
/// when the thread ends. Of smaller blocks, which come from the C library, it keeps up to 1 MiB.
///
/// With CLEAVE_POISON_MEMORY=1 in the environment (the tests), every floating-point number in new
/// and in freed memory is NaN, so that a read of either is noticed; the whole process then uses the
/// cache from its start. Under the address sanitizer no block is kept, so that it detects such
/// reads.
class MemoryCache : public c10::Allocator {
 public:
  /// Smaller blocks come from the C library, and are not counted.
  static constexpr size_t kMinBytes = size_t{64} << 10;

  /// Start of the message of allocate()'s Error.
  static constexpr std::string_view kNoMemory = "no memory for a tensor";

  /// Throws Error(kMemory).
  c10::DataPtr allocate(size_t num_bytes) override;
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t num_bytes) const override;

  /// Size in bytes of the unused blocks that this thread keeps.
  [[nodiscard]] static size_t kept_bytes();
};

/// Makes a MemoryCache libtorch's CPU allocator for the whole process. Existing tensors are not
/// affected. Later calls do nothing.
void use_memory_cache();

/// Whether libtorch failed for lack of memory. Its CPU allocator says so only in the message.
bool is_out_of_memory(const c10::Error& error);

}  // namespace cleave::inline torch_internals
