#pragma once
#include <string>
#include <vector>

#include "cleave/base/option.h"

namespace cleave::cli {

/// How many values a flag takes.
enum class Arity {
  kSwitch,  ///< none
  kOne,     ///< one; if repeated, the last one
  kMany,    ///< several: --data A B C
  kEach,    ///< one; the flag may be repeated
  kRows,    ///< like kEach; in a config file one row of numbers or a list of rows
};

/// As the option's variable decides.
Arity arity_of(const option::Row& row);

/// Stores the values of an option in its variable. `from` is "--steps" or "run.json: \"steps\"".
/// Throws Error(kUsage): "--tp is 'x'; expected an integer from 1 to 4096".
void read_values(const std::string& from, const std::vector<std::string>& values,
                 const option::Row& row);

}  // namespace cleave::cli
