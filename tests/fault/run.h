#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cleave/comm/launch/child_process.h"

namespace cleave::fault {

/// A command that runs in the background, with its output in a file.
class Run {
 public:
  Run(const std::vector<std::string>& command, const std::vector<std::string>& environment,
      std::string output);

  /// The pids of the started process and its children.
  [[nodiscard]] std::vector<pid_t> pids() const;
  /// The pids of its children (a launcher's ranks), or of the process itself if it has none.
  [[nodiscard]] std::vector<pid_t> ranks() const;
  [[nodiscard]] pid_t pid() const { return child_.pid(); }

  /// The exit code. If it runs longer than `seconds`, kills it and returns nullopt.
  std::optional<int> wait(double seconds);
  [[nodiscard]] bool has_ended() { return child_.poll_exit().has_value(); }
  /// Its output.
  [[nodiscard]] std::string text() const;

 private:
  bool launches_;  // the command is cleave launch
  std::string output_;
  ChildProcess child_;
};

/// A hash of the names and bytes of a checkpoint's tensor files (weights, moments, master weights);
/// "" if it has none.
std::string bits_of(const std::string& checkpoint);

/// The folder that `latest` of a run names; "" if there is none.
std::string newest_of(const std::string& run);

}  // namespace cleave::fault
