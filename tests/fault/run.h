#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cleave/comm/launch/child_process.h"

namespace cleave::fault {

/// A command that runs beside this program, with its output in a file.
class Run {
 public:
  Run(const std::vector<std::string>& command, const std::vector<std::string>& environment,
      std::string output);

  /// The process that was started, and those that it has started since, by pid.
  [[nodiscard]] std::vector<pid_t> pids() const;
  /// Those that it has started: the ranks of a launcher; the process itself when it has none.
  [[nodiscard]] std::vector<pid_t> ranks() const;
  [[nodiscard]] pid_t pid() const { return child_.pid(); }

  /// The exit code; nothing when it runs for longer, and then it is ended.
  std::optional<int> wait(double seconds);
  [[nodiscard]] bool has_ended() { return child_.poll_exit().has_value(); }
  /// What it printed.
  [[nodiscard]] std::string text() const;

 private:
  bool launches_;  // it is cleave launch
  std::string output_;
  ChildProcess child_;
};

/// A checkpoint's weights, moments and masters: a hash of the names and bytes of its tensor files;
/// "" when there is none.
std::string bits_of(const std::string& checkpoint);

/// The folder that `latest` of a run names; "" when there is none.
std::string newest_of(const std::string& run);

}  // namespace cleave::fault
