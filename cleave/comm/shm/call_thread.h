#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace cleave {

/// Makes calls beside the thread that gives them, one after the other in the order in which they
/// were given. A giver that has nothing to do but wait makes those that have not begun itself:
/// where the other thread has got no processor yet, nothing is lost.
class CallThread {
 public:
  CallThread() : thread_([this] { run(); }) {}
  ~CallThread() { end(); }
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;

  /// The future is ready, with what the call threw, once the call and all that it holds are gone:
  /// so the giver, who holds the same memory, is the one who frees it.
  std::shared_future<void> start(std::function<void()> call);
  /// Makes the calls that were given and ends; nothing may be started then.
  void end();
  /// Returns when the call of this future is made; throws what it threw.
  void await(const std::shared_future<void>& done);
  /// Returns when no call is left; what they threw is told by their futures alone.
  void await_all();

  /// Whether the calling thread is inside a started call: what it waits for there is no wait of the
  /// whole rank, since a peer's part of it may come beside what that peer does.
  static bool is_in_call();
  /// Whether the calling thread is one of these.
  static bool is_current();

 private:
  struct Given {
    std::function<void()> call;
    std::promise<void> done;
  };
  void run();
  /// Makes the first waiting call; none is being made. The lock is open meanwhile.
  void make_first(std::unique_lock<std::mutex>& lock);
  /// Makes calls, or waits for the one that is being made, until is_over().
  template <class IsOver>
  void help_until(const IsOver& is_over);

  std::mutex mutex_;  // the three below
  std::condition_variable changed_;
  std::deque<Given> waiting_;
  bool is_busy_ = false;
  bool is_ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace cleave
