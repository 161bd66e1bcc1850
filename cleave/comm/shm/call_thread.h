#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace cleave::inline comm {

/// A helper thread that runs queued calls in order. A caller that waits runs calls that have not
/// begun itself, so nothing is lost while the helper thread has no CPU.
class CallThread {
 public:
  CallThread() : thread_([this] { run(); }) {}
  ~CallThread() { end(); }
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;

  /// Queues a call. The future becomes ready, with the call's exception if any, after the call and
  /// its captures are destroyed. So memory that the caller shares with the call is freed by the
  /// caller.
  std::shared_future<void> start(std::function<void()> call);
  /// Runs the queued calls and ends the thread. Nothing may be started afterwards.
  void end();
  /// Waits for the call of this future and rethrows its exception.
  void await(const std::shared_future<void>& done);
  /// Waits until no call is left. Exceptions are only in the futures.
  void await_all();

  /// Whether the calling thread is inside a started call. A wait there does not block the whole
  /// rank: the rank and its peers may run other calls at the same time.
  static bool is_in_call();
  /// Whether the calling thread is a CallThread's helper thread.
  static bool is_current();

 private:
  struct QueuedCall {
    std::function<void()> call;
    std::promise<void> done;
  };
  void run();
  /// Runs the first queued call, with the lock released meanwhile. No call may be running.
  void run_first(std::unique_lock<std::mutex>& lock);
  /// Runs queued calls, or waits for the running one, until is_over().
  template <class IsOver>
  void help_until(const IsOver& is_over);

  std::mutex mutex_;  // guards the four members below
  std::condition_variable changed_;
  std::deque<QueuedCall> queue_;
  bool is_busy_ = false;
  bool is_ending_ = false;
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace cleave::inline comm
