#include "cleave/comm/shm/call_thread.h"

#include <chrono>
#include <exception>
#include <utility>

#include "cleave/base/error.h"

namespace cleave::inline comm {
namespace {

thread_local bool is_call_thread = false;
thread_local bool is_in_started_call = false;

}  // namespace

void CallThread::end() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_future<void> CallThread::start(std::function<void()> call) {
  QueuedCall queued{.call = std::move(call), .done = {}};
  std::shared_future<void> done = queued.done.get_future().share();
  {
    const std::lock_guard lock(mutex_);
    CLEAVE_CHECK(!is_ending_, Code::kBug, "a call was started after its thread ended; ",
                 queue_.size(), " calls are queued");
    queue_.push_back(std::move(queued));
  }
  changed_.notify_all();
  return done;
}

template <class IsOver>
void CallThread::help_until(const IsOver& is_over) {
  std::unique_lock lock(mutex_);
  while (!is_over()) {
    if (is_busy_ || queue_.empty()) {
      changed_.wait(lock);
    } else {
      run_first(lock);
    }
  }
}

void CallThread::await(const std::shared_future<void>& done) {
  help_until([&] { return done.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  done.get();
}

void CallThread::await_all() {
  help_until([&] { return queue_.empty() && !is_busy_; });
}

bool CallThread::is_current() {
  return is_call_thread;
}

bool CallThread::is_in_call() {
  return is_in_started_call;
}

void CallThread::run_first(std::unique_lock<std::mutex>& lock) {
  QueuedCall queued = std::move(queue_.front());
  queue_.pop_front();
  is_busy_ = true;
  lock.unlock();
  std::exception_ptr thrown;
  is_in_started_call = true;
  try {
    queued.call();
  } catch (...) {
    thrown = std::current_exception();
  }
  is_in_started_call = false;
  queued.call = nullptr;
  thrown ? queued.done.set_exception(thrown) : queued.done.set_value();
  lock.lock();
  is_busy_ = false;
  changed_.notify_all();
}

void CallThread::run() {
  is_call_thread = true;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !is_busy_ && (!queue_.empty() || is_ending_); });
    if (queue_.empty()) return;
    run_first(lock);
  }
}

}  // namespace cleave::inline comm
