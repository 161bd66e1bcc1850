#pragma once
#include <array>
#include <cstdio>
#include <poll.h>
#include <pty.h>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace cleave::test {

/// Captures stdout in a pipe, or in a terminal of `columns` columns.
class Captured {
 public:
  explicit Captured(int columns = 0) {
    int end = -1;
    if (columns > 0) {
      winsize size{24, static_cast<unsigned short>(columns), 0, 0};
      EXPECT_EQ(openpty(&reader_, &end, nullptr, nullptr, &size), 0);
    } else {
      std::array<int, 2> ends{};
      EXPECT_EQ(pipe(ends.data()), 0);
      reader_ = ends[0];
      end = ends[1];
    }
    (void)std::fflush(stdout);  // what gtest has printed is not captured
    saved_ = dup(STDOUT_FILENO);
    dup2(end, STDOUT_FILENO);
    close(end);
  }

  /// Restores stdout and returns the captured text. Call it once.
  std::string take() {
    std::string text;
    pollfd ready{reader_, POLLIN, 0};
    while (poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0) {
      std::array<char, 4096> buffer{};
      const ssize_t length = read(reader_, buffer.data(), buffer.size());
      if (length <= 0) break;
      text.append(buffer.data(), static_cast<size_t>(length));
    }
    dup2(saved_, STDOUT_FILENO);
    close(saved_);
    close(reader_);
    return text;
  }

 private:
  int reader_ = -1;
  int saved_ = -1;
};

}  // namespace cleave::test
