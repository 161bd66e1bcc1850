#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/program.h"

namespace cleave::test {

/// The path of the program with a library that only prints the options that it receives
/// (fake_library.cc).
std::string fake_program();

/// Runs fake_program().
inline RunResult run_fake(std::vector<std::string> words, const RunWith& with = {}) {
  words.insert(words.begin(), fake_program());
  return run_program(std::move(words), with);
}

/// Runs a command line that must succeed; returns the options that the library received.
inline nlohmann::json received_options(std::vector<std::string> words, const RunWith& with = {}) {
  const RunResult ran = run_fake(std::move(words), with);
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  return nlohmann::json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
}

}  // namespace cleave::test
