#include "cleave/comm/shm/futex.h"

#include <climits>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace cleave::inline comm {

void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::milliseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  timespec wait{};
  wait.tv_sec = static_cast<time_t>(seconds.count());
  wait.tv_nsec = static_cast<long>((limit - seconds).count()) * 1'000'000;
  // The caller rechecks the word after every return (woken, value changed, timeout, signal).
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &wait, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace cleave::inline comm
