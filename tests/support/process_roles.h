#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cleave/comm/api/world.h"
#include "cleave/comm/launch/launch.h"
#include "tests/support/temp_folder.h"

namespace cleave::inline comm {

/// Code that comm_test runs in child processes. It starts itself with CLEAVE_TEST_ROLE=name and
/// then runs the role instead of the tests. Children are exec'd, never only forked, because the
/// test has threads.
class ProcessRole {
 public:
  ProcessRole(std::string name, std::function<int()> run);
  /// Runs the role that the environment names and returns its exit code; nullopt if it names none.
  static std::optional<int> run_named();
};

/// A temporary folder for one test, whose paths are strings.
class TestFolder {
 public:
  [[nodiscard]] std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  test::TempFolder folder_;
};

/// The contents of a file; "" if it does not exist.
std::string read_file(const std::string& path);

/// The path of this test program.
std::string own_program();

/// Options to launch `num_ranks` processes in this role.
LaunchOptions launch_of_role(int num_ranks, const std::string& role);

/// run_ranks() with processes, for the contract tests: each rank runs this program again, with only
/// the current test, up to the same call of this function.
void run_processes(int num_ranks, const std::function<void(World&)>& body,
                   const RankOptions& options);

}  // namespace cleave::inline comm
