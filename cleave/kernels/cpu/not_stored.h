#pragma once

namespace cleave {

/// A member that makes a struct of raw pointers impossible to copy or move. Such a struct is built
/// from tensors where a kernel is called. It cannot go into a backward function, a container or
/// another thread: by then FSDP may have freed the memory and gathered the weights again elsewhere.
/// Backward functions keep tensors, which follow their memory.
struct NotStored {
  NotStored() = default;
  NotStored(const NotStored&) = delete;
  NotStored& operator=(const NotStored&) = delete;
};

}  // namespace cleave
