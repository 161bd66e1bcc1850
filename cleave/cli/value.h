#pragma once
#include <string>
#include <vector>

#include "cleave/base/option.h"
#include "cleave/text/json.h"

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

/// One member of a config file that is not null.
struct ConfigEntry {
  std::string key;   ///< as written
  std::string name;  ///< of the flag, without dashes: "batch_size" is "batch-size"
  Json value;
};

/// The members of the JSON object in `path`. Throws Error(kIo) or Error(kFormat).
std::vector<ConfigEntry> read_config_entries(const std::string& path);

/// The member's values as on a command line; `is_opposite` for "no-shuffle": true. Throws
/// Error(kFormat) if the value's type does not match the arity.
std::vector<std::string> config_values(const ConfigEntry& entry, Arity arity, bool is_opposite);

}  // namespace cleave::cli
