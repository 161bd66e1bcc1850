#pragma once
#include <csignal>
#include <cstddef>
#include <poll.h>
#include <pty.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace cleave::test {

/// A program whose stdin, stdout and stderr are a terminal. The destructor kills it.
class TerminalProgram {
 public:
  /// Starts words[0] with the other words as arguments.
  explicit TerminalProgram(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      std::signal(SIGHUP, SIG_DFL);  // the tests may run under nohup
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    EXPECT_GT(pid_, 0);
  }
  ~TerminalProgram() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (terminal_ >= 0) close(terminal_);
  }
  TerminalProgram(const TerminalProgram&) = delete;
  TerminalProgram& operator=(const TerminalProgram&) = delete;

  /// Types the text; "\x03" is Ctrl-C, "\x04" Ctrl-D.
  void type(const std::string& text) const {
    EXPECT_EQ(write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  /// Closes the terminal, as when its window or ssh session ends: the program gets SIGHUP.
  void hang_up() { close(std::exchange(terminal_, -1)); }

  /// What the terminal shows from the last call up to `end`; less if the program ends, or shows
  /// nothing for kProgramDeadlineS, first.
  std::string read_until(const std::string& end) {
    while (true) {
      const size_t at = shown_.find(end);
      if (at != std::string::npos) return take(at + end.size());
      pollfd ready{terminal_, POLLIN, 0};
      char block[1024];
      if (poll(&ready, 1, kProgramDeadlineS * 1000) <= 0) return take(shown_.size());
      const ssize_t size = read(terminal_, block, sizeof(block));
      if (size <= 0) return take(shown_.size());  // EIO: the program has ended
      shown_.append(block, static_cast<size_t>(size));
    }
  }

  /// Waits for the end; returns the exit code, or 128 + the signal that ended it.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  std::string take(size_t count) {
    std::string text = shown_.substr(0, count);
    shown_.erase(0, count);
    return text;
  }

  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string shown_;
};

}  // namespace cleave::test
