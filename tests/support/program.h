#pragma once
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/clock.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {

/// Result of running a program.
struct RunResult {
  int exit_code = -1;  ///< 128 + n if signal n ended it
  std::string out, err;
  double seconds = 0;
};

/// After this time a program is killed, and its test fails. A loaded machine loads libtorch slowly.
inline constexpr int kProgramDeadlineS = 100;

struct RunWith {
  std::vector<std::string> environment{};  ///< NAME=value, added to this process's environment
  std::string input{};                     ///< stdin
};

namespace internal {

inline std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

/// Waits for the child without polling: the write end of `alive` closes when it ends.
inline int wait_for(pid_t pid, int alive) {
  pollfd ended{alive, POLLIN, 0};
  if (poll(&ended, 1, kProgramDeadlineS * 1000) == 0) {
    kill(pid, SIGKILL);
    ADD_FAILURE() << "not ended after " << kProgramDeadlineS << " s";
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace internal

/// Runs the program words[0] with the other words as arguments, and waits for it.
inline RunResult run_program(std::vector<std::string> words, const RunWith& with = {}) {
  const TempFolder folder;
  const std::string in = folder / "in", out = folder / "out", err = folder / "err";
  std::ofstream(in, std::ios::binary) << with.input;
  std::vector<std::string> environment = with.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);

  int alive[2];
  EXPECT_EQ(pipe2(alive, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, in.c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT, 0600);
  constexpr int kAliveInChild = 100;
  posix_spawn_file_actions_adddup2(&actions, alive[1], kAliveInChild);
  pid_t pid = -1;
  const double start = monotonic_s();
  const int problem =
      posix_spawn(&pid, words.front().c_str(), &actions, nullptr, internal::pointers(words).data(),
                  internal::pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(alive[1]);
  RunResult ran;
  EXPECT_EQ(problem, 0) << words.front();
  if (problem == 0) ran.exit_code = internal::wait_for(pid, alive[0]);
  ran.seconds = monotonic_s() - start;
  close(alive[0]);
  ran.out = internal::text_of(out);
  ran.err = internal::text_of(err);
  return ran;
}

/// Runs this build's cleave.
inline RunResult run_cleave(std::vector<std::string> words, const RunWith& with = {}) {
  words.insert(words.begin(), test::program());
  return run_program(std::move(words), with);
}

}  // namespace cleave::test
