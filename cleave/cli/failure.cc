#include "cleave/cli/failure.h"

#include "cleave/base/error.h"
#include "cleave/comm/launch/failure.h"

namespace cleave::cli {
namespace {

int number(Code code) {
  return static_cast<int>(code);
}

}  // namespace

int report_failure() {
  return cleave::report_failure("; this is a bug in cleave (--trace shows where)");
}

std::vector<ExitCode> exit_codes() {
  const auto row = [](Code code, std::string meaning) {
    return ExitCode{number(code), std::string(name(code)), std::move(meaning)};
  };
  return {
      {0, "ok", "all done"},
      {kDifferent, "different", "what diff compares is not equal"},
      row(Code::kUsage, "a flag or a command line that cannot mean anything"),
      row(Code::kShape, "sizes, layouts or a configuration that do not fit together"),
      row(Code::kFormat, "a file whose bytes are not what its format says"),
      row(Code::kIo, "the operating system refused a file operation"),
      row(Code::kPeer, "another rank is gone"),
      row(Code::kTimeout, "a wait was longer than --timeout"),
      row(Code::kDesync, "ranks called different collectives"),
      row(Code::kNumerics, "NaN or infinity where a number is needed"),
      row(Code::kMemory, "not enough memory"),
      row(Code::kBug, "a contradiction inside cleave: please report it"),
  };
}

}  // namespace cleave::cli
