#pragma once
#include <cstdint>
#include <string>

#include "cleave/text/json.h"

namespace cleave {

/// How spaces are written as a visible mark: the "Metaspace" of pre-tokenizers and decoders.
struct Metaspace {
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };
  std::string mark;  ///< one character, U+2581 by default
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

/// Reads "replacement", "prepend_scheme" (or the older "add_prefix_space") and "split".
Metaspace read_metaspace(const Json& json);

}  // namespace cleave
