#pragma once

namespace cleave::inline comm {

/// Scope in which a thread calls collectives for another thread of its rank, which is blocked until
/// they end: libtorch runs backward functions of device tensors on its own threads. Outside of this
/// scope, a rank with two communicating threads does not count as part of a deadlock cycle, because
/// each thread may end the wait of the other.
class ForBlockedThread {
 public:
  /// Begins the scope if `is_blocked`, that is if another thread waits for the calling one.
  explicit ForBlockedThread(bool is_blocked) : before_(active) { active = active || is_blocked; }
  ~ForBlockedThread() { active = before_; }
  ForBlockedThread(const ForBlockedThread&) = delete;
  ForBlockedThread& operator=(const ForBlockedThread&) = delete;

  /// Whether the calling thread is inside such a scope.
  static bool is_active() { return active; }

 private:
  static inline thread_local bool active = false;
  bool before_;
};

}  // namespace cleave::inline comm
