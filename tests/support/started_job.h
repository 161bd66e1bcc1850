#pragma once
#include <filesystem>
#include <list>
#include <poll.h>
#include <string>
#include <vector>

#include "cleave/base/str.h"
#include "cleave/comm/launch/child_process.h"
#include "tests/support/process_roles.h"

namespace cleave::test {

/// The processes of one job that `cleave launch` did not start, in the role "joins" of comm_test.
class StartedJob {
 public:
  explicit StartedJob(double timeout_s = 10) : timeout_s_(timeout_s) {
    std::filesystem::create_directory(folder_ / "runtime");
    std::filesystem::permissions(folder_ / "runtime", std::filesystem::perms::owner_all);
  }
  void start(int rank, int world_size, const std::vector<std::string>& more = {}) {
    std::vector<std::string> variables{"CLEAVE_TEST_ROLE=joins",
                                       "CLEAVE_TEST_STDERR=" + stderr_of(ranks_.size()),
                                       str("CLEAVE_TEST_TIMEOUT=", timeout_s_),
                                       "XDG_RUNTIME_DIR=" + folder_ / "runtime",
                                       str("RANK=", rank),
                                       str("WORLD_SIZE=", world_size),
                                       "LOCAL_RANK=0",
                                       str("LOCAL_WORLD_SIZE=", world_size),
                                       "MASTER_ADDR=127.0.0.1",
                                       "MASTER_PORT=29500"};
    variables.insert(variables.end(), more.begin(), more.end());
    ranks_.emplace_back(ChildOptions{.command = {own_program()}, .environment = variables});
  }
  /// The exit codes in starting order; -1 for a rank that does not end within ten seconds.
  std::vector<int> wait() {
    std::vector<int> codes;
    for (ChildProcess& rank : ranks_) {
      pollfd ended{rank.pidfd(), POLLIN, 0};
      codes.push_back(poll(&ended, 1, 10'000) == 1 ? rank.poll_exit().value_or(-1) : -1);
    }
    return codes;
  }
  [[nodiscard]] std::string errors(size_t index) const { return read_file(stderr_of(index)); }
  [[nodiscard]] bool is_clean() const { return std::filesystem::is_empty(folder_ / "runtime"); }
  [[nodiscard]] std::string runtime() const { return folder_ / "runtime"; }

 private:
  [[nodiscard]] std::string stderr_of(size_t index) const {
    return folder_ / str("stderr.", index);
  }

  TestFolder folder_;
  double timeout_s_;
  std::list<ChildProcess> ranks_;
};

}  // namespace cleave::test
