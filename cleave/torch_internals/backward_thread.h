#pragma once
#include <c10/util/thread_name.h>

namespace cleave::inline torch_internals {

/// Whether libtorch made the calling thread to run backward functions of device tensors. Its caller
/// is blocked in backward() meanwhile.
inline bool is_backward_thread() {
  // The engine gives its threads this name; it has no other public sign of them.
  static thread_local const bool is_one = c10::getThreadName().starts_with("pt_autograd_");
  return is_one;
}

}  // namespace cleave::inline torch_internals
