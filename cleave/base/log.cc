#include "cleave/base/log.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <mutex>
#include <unistd.h>

namespace cleave::inline base {
namespace {

std::atomic<bool> stdout_lost{false};

constexpr std::string_view kClearLine = "\r\x1b[K";

// Never destroyed: threads may log while the process ends.
std::timed_mutex& output_mutex() {
  static auto* mutex = new std::timed_mutex;
  return *mutex;
}

std::string& live_line() {
  static auto* line = new std::string;
  return *line;
}

// One write for a whole line, so that the lines of several processes do not mix. Write errors do
// not end the work: a closed pipe raises SIGPIPE, which is handled elsewhere, and a program checks
// is_stdout_lost() at its end.
void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      const bool is_full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
      if (done < 0 && is_full && fd == STDOUT_FILENO) stdout_lost = true;
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(done));
  }
}

std::string as_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text + '\n';
}

}  // namespace

namespace internal {

void write_stdout_line(const std::string& text) {
  const std::lock_guard lock(output_mutex());
  const std::string& live = live_line();
  write_all(STDOUT_FILENO,
            live.empty() ? text + '\n' : std::string(kClearLine) + text + '\n' + live);
}

void write_stderr_line(const std::string& text) {
  // If stdout is blocked, the thread that holds the lock never releases it; errors must not wait.
  // system_clock, because the thread sanitizer supports no other timed lock.
  constexpr std::chrono::milliseconds kMaxWait(100);
  const std::unique_lock lock(output_mutex(), std::chrono::system_clock::now() + kMaxWait);
  const std::string live = lock ? live_line() : "";
  if (!live.empty()) write_all(STDOUT_FILENO, kClearLine);
  write_all(STDERR_FILENO, as_line(text));
  if (!live.empty()) write_all(STDOUT_FILENO, live);
}

}  // namespace internal

bool is_stdout_lost() {
  return stdout_lost;
}

void set_live_line(std::string_view text) {
  const std::lock_guard lock(output_mutex());
  std::string& live = live_line();
  if (live.empty() && text.empty()) return;
  live = text;
  write_all(STDOUT_FILENO, std::string(kClearLine) + live);
}

namespace {

bool quiet_setting = false;

}  // namespace

void set_quiet(bool quiet) {
  quiet_setting = quiet;
}

bool is_quiet() {
  return quiet_setting;
}

}  // namespace cleave::inline base
