#pragma once
#include <string>
#include <vector>

namespace cleave::cli {

/// Prints the exception being handled as one line on stderr and returns its exit code. Call it only
/// inside a catch block.
int report_failure();

/// Exit code of `cleave diff` when it finds differences.
inline constexpr int kDifferent = 1;

/// One row of the table of exit codes.
struct ExitCode {
  int code;
  std::string name;
  std::string meaning;
};

/// All exit codes of the program below 128; 128 + n means ended by signal n.
std::vector<ExitCode> exit_codes();

}  // namespace cleave::cli
