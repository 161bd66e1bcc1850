#pragma once
#include <string_view>

#include "cleave/text/json.h"

namespace cleave {

/// Whether the object has the key, also with null.
inline bool has_key(const Json& json, std::string_view key) {
  for (size_t i = 0; i < json.size(); ++i) {
    if (json.key(i) == key) return true;
  }
  return false;
}

}  // namespace cleave
