#pragma once
#include <string>
#include <vector>

namespace cleave::cli {

/// Turns the exception in flight into one line on stderr and the exit code that it means. Call it
/// inside a catch block only.
int report_failure();

/// Exit code of `cleave diff` when what it compares is not equal.
inline constexpr int kDifferent = 1;

/// One row of the table of exit codes.
struct ExitCode {
  int code;
  std::string name;
  std::string meaning;
};

/// Every exit code of the program below 128; 128 + n is the end by signal n.
std::vector<ExitCode> exit_codes();

}  // namespace cleave::cli
