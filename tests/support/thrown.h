#pragma once
#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave::test {

/// The Error that `action` throws; fails the test if it throws none.
template <class Action>
Error thrown_by(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {Code::kBug, "nothing was thrown"};
}

}  // namespace cleave::test
