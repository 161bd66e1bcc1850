#include <iostream>

#include "cleave/base/error.h"
#include "cleave/base/version.h"

int main() {
  try {
    CLEAVE_CHECK(false, cleave::Code::kShape, "core ", cleave::version());
  } catch (const cleave::Error& error) {
    std::cout << error.what() << "\n";
    return error.code() == cleave::Code::kShape ? 0 : 1;
  }
  return 1;
}
