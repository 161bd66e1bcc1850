// Random command lines of NUL-terminated words, parsed by the program with commands that do
// nothing: a refusal has an exit code of the table other than kBug.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/cli/program.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::cli::Command;
using cleave::cli::Flags;
using cleave::cli::Run;
using cleave::fuzz::require;

/// A command that parses its flags but does nothing.
Command parsed_only(Command command) {
  command.define = [define = std::move(command.define)](Flags& flags) -> Run {
    // The closure owns the variables that the flags are read into.
    return [run = define(flags)] { return 0; };
  };
  return command;
}

const std::vector<Command>& commands() {
  static const std::vector<Command> all = [] {
    std::vector<Command> made = cleave::cli::all_commands();
    for (Command& command : made) command = parsed_only(std::move(command));
    return made;
  }();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> words;
  std::string_view rest = cleave::fuzz::text_of(data, size);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    words.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const int code = cleave::cli::run_program(words, commands());
  require(code >= 0 && code <= 10 && code != 1);
  return 0;
}
