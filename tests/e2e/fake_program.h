#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/program.h"

namespace cleave::test {

/// Runs the program beside a library that only tells what it was asked for (fake_library.cc).
inline Ran run_fake(std::vector<std::string> words, const RunWith& with = {}) {
  words.insert(words.begin(), CLEAVE_FAKE_PROGRAM);
  return run_program(std::move(words), with);
}

/// The same for a command line that must succeed: the options that reached the library.
inline nlohmann::json told_by_fake(std::vector<std::string> words, const RunWith& with = {}) {
  const Ran ran = run_fake(std::move(words), with);
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  return nlohmann::json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
}

}  // namespace cleave::test
