#pragma once
#include <string>
#include <vector>

#include "cleave/cli/value.h"
#include "cleave/text/json.h"

namespace cleave::cli {

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
