#include "cleave/base/stop.h"

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <string_view>
#include <unistd.h>

#include "cleave/base/error.h"

namespace cleave::inline base {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

static_assert(std::atomic<int64_t>::is_always_lock_free, "signal handlers need lock-free atomics");
std::atomic<int> first_signal{0};
std::atomic<bool> installed{false};
std::atomic<bool> answers{false};                      // Ctrl-C, on stderr
std::atomic<int64_t> seen_at_ms[std::size(kSignals)];  // time of the first of each; 0: none yet
struct sigaction previous[std::size(kSignals)];

/// Async-signal-safe, unlike std::chrono.
int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

extern "C" void on_stop_signal(int signal) {
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    if (kSignals[i] != signal) continue;
    int64_t before = 0;
    const int64_t now = now_ms();
    const bool is_first = seen_at_ms[i].compare_exchange_strong(before, now);
    if (!is_first && now - before > kSameSignal.count()) _exit(128 + signal);
    if (is_first && signal == SIGINT && answers) {
      constexpr char kAnswer[] =
          "\ncleave: stopping after this step; press Ctrl-C again to stop immediately\n";
      (void)!::write(STDERR_FILENO, kAnswer, sizeof(kAnswer) - 1);
    }
  }
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
}

}  // namespace

StopSignal::StopSignal() {
  if (installed.exchange(true)) CLEAVE_BUG("two StopSignals at the same time");
  first_signal = 0;
  // A step may take minutes. Other ranks of a launcher would repeat the answer.
  const char* rank = std::getenv("RANK");  // NOLINT(concurrency-mt-unsafe)
  answers = isatty(STDERR_FILENO) == 1 && (rank == nullptr || std::string_view(rank) == "0");
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    seen_at_ms[i] = 0;
    struct sigaction action = {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;  // interrupted reads and writes continue
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

}  // namespace cleave::inline base
