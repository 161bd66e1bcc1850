#include "cleave/base/stop.h"

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <string_view>
#include <unistd.h>

namespace cleave::inline base {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

static_assert(std::atomic<int64_t>::is_always_lock_free &&
                  std::atomic<const char*>::is_always_lock_free,
              "signal handlers need lock-free atomics");
std::atomic<int> first_signal{0};
std::atomic<int> num_objects{0};
std::atomic<const char*> answer_to_ctrl_c{nullptr};    // on stderr; null: none
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
    const bool is_again = !is_first && now - before > kSameSignal.count();
    if (is_again && signal != SIGHUP) _exit(128 + signal);
    const char* answer = answer_to_ctrl_c;
    if (is_first && signal == SIGINT && answer != nullptr) {
      (void)!::write(STDERR_FILENO, answer, strlen(answer));
    }
  }
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
}

}  // namespace

StopSignal::StopSignal(const char* answer) {
  if (num_objects++ > 0) return;
  first_signal = 0;
  // A step may take minutes. Other ranks of a launcher would repeat the answer.
  const char* rank = std::getenv("RANK");  // NOLINT(concurrency-mt-unsafe)
  const bool is_shown =
      isatty(STDERR_FILENO) == 1 && (rank == nullptr || std::string_view(rank) == "0");
  answer_to_ctrl_c = is_shown ? answer : nullptr;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    seen_at_ms[i] = 0;
    sigaction(kSignals[i], nullptr, &previous[i]);
    if (kSignals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN) continue;  // nohup
    struct sigaction action = {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;  // interrupted reads and writes continue
    sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignal::~StopSignal() {
  if (--num_objects > 0) return;
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  first_signal = 0;
}

int StopSignal::pending() {
  return first_signal.load(std::memory_order_relaxed);
}

}  // namespace cleave::inline base
