#include "tests/support/paths.h"

// Only this file is compiled with these paths: a compiler cache serves the others in every clone.
namespace cleave::test {

std::string source_file(const std::string& name) {
  return std::string(CLEAVE_SOURCE_DIR) + '/' + name;
}

std::string program() {
  return CLEAVE_PROGRAM;
}

}  // namespace cleave::test
