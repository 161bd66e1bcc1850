#include "tests/e2e/fake_program.h"

namespace cleave::test {

std::string fake_program() {
  return CLEAVE_FAKE_PROGRAM;
}

}  // namespace cleave::test
