#pragma once
#include <cstdint>

namespace cleave::inline kernels {

/// A member that makes a struct of raw pointers neither copyable nor movable. Such a struct is
/// built from tensors where a kernel is called. It must not be stored in a backward function or a
/// container or passed to another thread, because FSDP may free the memory and gather the weights
/// elsewhere meanwhile. Backward functions keep tensors, which stay valid.
///
/// Structs of which a CUDA kernel reads an array have no such member; see SquaresOf.
struct NotStored {
  NotStored() = default;
  NotStored(const NotStored&) = delete;
  NotStored& operator=(const NotStored&) = delete;
};

/// Software prefetch distance in bytes for memory-bound loops. The CPU's own prefetcher stops at
/// page boundaries.
inline constexpr int64_t kFetchAheadBytes = 4096;

}  // namespace cleave::inline kernels
