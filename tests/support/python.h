#pragma once
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace cleave::test {

/// Runs a script with the Python of $CLEAVE_PYTHON, python3 without it; sys.argv[1:] are
/// `arguments`.
inline RunResult run_python(const std::string& script,
                            const std::vector<std::string>& arguments = {}) {
  const char* named = std::getenv("CLEAVE_PYTHON");  // NOLINT(concurrency-mt-unsafe)
  std::vector<std::string> words = {"/usr/bin/env", named != nullptr ? named : "python3", "-c",
                                    script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_program(words);
}

/// Whether that Python has a package; tests that need one are skipped without it.
inline bool python_has(const std::string& package) {
  return run_python("import importlib.util as u, sys; sys.exit(u.find_spec('" + package +
                    "') is None)")
             .exit_code == 0;
}

}  // namespace cleave::test
