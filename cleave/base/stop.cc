#include "cleave/base/stop.h"

#include <atomic>
#include <csignal>
#include <cstddef>
#include <iterator>
#include <unistd.h>

#include "cleave/base/error.h"

namespace cleave {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch these");
std::atomic<int> first_signal{0};
std::atomic<bool> installed{false};
std::atomic<int> times_seen[std::size(kSignals)];
struct sigaction previous[std::size(kSignals)];

extern "C" void on_stop_signal(int signal) {
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    if (kSignals[i] == signal && times_seen[i].fetch_add(1) > 0) _exit(128 + signal);
  }
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
}

}  // namespace

StopSignal::StopSignal() {
  if (installed.exchange(true)) CLEAVE_BUG("two StopSignals at once");
  first_signal = 0;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    times_seen[i] = 0;
    struct sigaction action = {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;  // a read or write in progress goes on
    sigaction(kSignals[i], &action, &previous[i]);
  }
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  first_signal = 0;
  installed = false;
}

int StopSignal::pending() {
  return first_signal.load(std::memory_order_relaxed);
}

}  // namespace cleave
