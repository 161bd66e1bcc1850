#pragma once
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <poll.h>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"
#include "cleave/comm/launch/child_process.h"
#include "tests/support/level.h"
#include "tests/support/process_roles.h"

namespace cleave::test {

/// Waits for `condition` for at most ten seconds; returns whether it became true.
template <class Condition>
bool eventually(const Condition& condition) {
  const auto begin = std::chrono::steady_clock::now();
  while (!condition()) {
    if (milliseconds_since(begin) > 10'000) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// A running launcher whose ranks run a role of comm_test and have started to work.
class RunningLaunch {
 public:
  RunningLaunch(const std::string& role, int num_ranks, const std::vector<std::string>& more = {})
      : launcher_(options(role, num_ranks, more)) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      const std::string file = folder_ / str("pid.", rank);
      EXPECT_TRUE(eventually([&] { return std::filesystem::exists(file); })) << "rank " << rank;
      ranks_.push_back(std::atoi(read_file(file).c_str()));
      pidfds_.emplace_back(static_cast<int>(syscall(SYS_pidfd_open, ranks_.back(), 0)));
      EXPECT_TRUE(pidfds_.back().is_open());
    }
  }
  /// Kills ranks that a failed test has left.
  ~RunningLaunch() {
    for (const Descriptor& pidfd : pidfds_) {
      syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
    }
  }
  RunningLaunch(const RunningLaunch&) = delete;
  RunningLaunch& operator=(const RunningLaunch&) = delete;

  [[nodiscard]] const ChildProcess& launcher() const { return launcher_; }
  [[nodiscard]] pid_t rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  [[nodiscard]] std::string errors() const { return read_file(folder_ / "stderr"); }
  /// Folder for the ranks' files; $XDG_RUNTIME_DIR and $TMPDIR of the job.
  [[nodiscard]] std::string folder() const { return folder_ / ""; }

  /// The launcher's exit code; -1 if it does not end within ten seconds.
  int wait() {
    pollfd ended{launcher_.pidfd(), POLLIN, 0};
    return poll(&ended, 1, 10'000) == 1 ? launcher_.poll_exit().value_or(-1) : -1;
  }
  /// Checks the pidfds: a rank without its launcher ends as a zombie of init, whose pid still
  /// exists.
  [[nodiscard]] bool any_rank_alive() const {
    return std::any_of(pidfds_.begin(), pidfds_.end(), [](const Descriptor& pidfd) {
      pollfd ended{pidfd.get(), POLLIN, 0};
      return poll(&ended, 1, 0) == 0;
    });
  }

 private:
  [[nodiscard]] ChildOptions options(const std::string& role, int num_ranks,
                                     const std::vector<std::string>& more) const {
    ChildOptions options{
        .command = {own_program()},
        .environment = {"CLEAVE_TEST_ROLE=launcher", "CLEAVE_TEST_RANK_ROLE=" + role,
                        str("CLEAVE_TEST_RANKS=", num_ranks), "CLEAVE_TEST_FOLDER=" + folder_ / "",
                        "XDG_RUNTIME_DIR=" + folder_ / "", "TMPDIR=" + folder_ / ""}};
    options.environment.insert(options.environment.end(), more.begin(), more.end());
    return options;
  }

  TestFolder folder_;
  ChildProcess launcher_;
  std::vector<pid_t> ranks_;
  std::vector<Descriptor> pidfds_;
};

}  // namespace cleave::test
