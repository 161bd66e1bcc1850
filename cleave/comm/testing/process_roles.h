#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cleave/comm/launch/launch.h"
#include "cleave/comm/api/world.h"

namespace cleave {

/// Code that comm_test runs in processes of its own: it starts itself with CLEAVE_TEST_ROLE=name
/// and then does this instead of the tests. Processes are exec'd, never forked after threads.
class ProcessRole {
 public:
  ProcessRole(std::string name, std::function<int()> run);
  /// The exit code of the role that the environment names; nothing when it names none.
  static std::optional<int> run_named();
};

/// A folder of its own for one test; goes with it.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const;

 private:
  std::string path_;
};

/// All of a file; "" when there is none.
std::string read_file(const std::string& path);

/// The path of this test program.
std::string own_program();

/// The options to launch `num_ranks` processes in this role.
LaunchOptions launch_of_role(int num_ranks, const std::string& role);

/// run_ranks() over real processes, for the contract tests: each rank is this program once more,
/// running just the current test up to the same call of this function.
void run_processes(int num_ranks, const std::function<void(World&)>& body,
                   const RankOptions& options);

}  // namespace cleave
