#pragma once
#include <string>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/mesh/cuda.h"

namespace cleave::test {

/// Why this host cannot run `count` ranks on GPUs; "" if it can.
inline std::string why_no_gpu(int count = 1) {
  try {
    const int found = cuda().num_gpus();
    return found >= count ? "" : str("needs ", count, " GPUs, this host has ", found);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace cleave::test

/// Skips the test, with the reason, if there are fewer GPUs.
#define SKIP_WITHOUT_GPUS(count) \
  if (const std::string why = ::cleave::test::why_no_gpu(count); !why.empty()) GTEST_SKIP() << why
