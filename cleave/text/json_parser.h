#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/text/json.h"

namespace cleave::inline text {

/// One value in the flat tree of a parsed text.
struct JsonNode {
  Json::Type type = Json::Type::kNull;
  uint32_t offset = 0;  ///< byte offset in the text
  uint32_t parent = 0;  ///< index of the parent node; its own index for the root
  uint32_t key = 0;     ///< member of an object: index into strings; element of an array: position
  /// String: index into strings; container: first entry in children; number: first byte in numbers;
  /// bool: 0 or 1.
  uint32_t first = 0;
  uint32_t count = 0;   ///< elements, members, or bytes of a number
  uint32_t sorted = 0;  ///< object: first entry of its members in `sorted`
};

/// A parsed text. Node 0 is the root. The text itself is not kept.
struct JsonTree {
  std::string source;
  std::string numbers;  ///< all numbers as written, concatenated
  std::vector<JsonNode> nodes;
  std::vector<std::string> strings;
  std::vector<uint32_t> children;  ///< node indices in file order
  std::vector<uint32_t> sorted;    ///< node indices of object members, ordered by key
};

/// Parses RFC 8259 JSON. Throws Error(kFormat) naming `source` and the byte.
JsonTree parse_json_tree(std::string_view text, std::string source, const JsonLimits& limits);

}  // namespace cleave::inline text
