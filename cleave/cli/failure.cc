#include "cleave/base/error.h"
#include "cleave/cli/program.h"

namespace cleave::cli {
namespace {

int number(Code code) {
  return static_cast<int>(code);
}

}  // namespace

std::vector<ExitCode> exit_codes() {
  const auto row = [](Code code, std::string meaning) {
    return ExitCode{number(code), std::string(name(code)), std::move(meaning)};
  };
  return {
      {0, "ok", "success"},
      {kDifferent, "different", "diff found differences"},
      row(Code::kUsage, "invalid flag or command line"),
      row(Code::kShape, "sizes, layout or settings do not match"),
      row(Code::kFormat, "a file violates its format"),
      row(Code::kIo, "the operating system refused a file operation"),
      row(Code::kPeer, "another rank failed or left"),
      row(Code::kTimeout, "a wait exceeded --timeout"),
      row(Code::kDesync, "ranks called different collectives"),
      row(Code::kNumerics, "NaN or infinity; or verify found a difference"),
      row(Code::kMemory, "not enough memory"),
      row(Code::kBug, "internal error in cleave; please report it"),
  };
}

}  // namespace cleave::cli
