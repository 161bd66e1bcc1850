#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/text/json.h"

namespace cleave {

/// One value in the flat tree behind Json.
struct JsonNode {
  Json::Type type = Json::Type::kNull;
  uint32_t offset = 0;  ///< byte of the text where it begins
  uint32_t parent = 0;  ///< node that holds it; its own number for the root
  uint32_t key = 0;     ///< in an object: string of the key; in an array: position
  /// String: number in strings; container: first entry of children; number: first byte in
  /// `numbers`; bool: 0 or 1.
  uint32_t first = 0;
  uint32_t count = 0;   ///< elements, members, or bytes of a number
  uint32_t sorted = 0;  ///< object: first entry of its members in `sorted`, ordered by key
};

/// A parsed text: node 0 is the root. The text itself is not kept.
struct JsonTree {
  std::string source;
  std::string numbers;  ///< as they are written, one behind the other
  std::vector<JsonNode> nodes;
  std::vector<std::string> strings;
  std::vector<uint32_t> children, sorted;
};

/// Parses RFC 8259 JSON. Throws Error(kFormat) naming `source` and the byte.
JsonTree parse_json_tree(std::string_view text, std::string source, const JsonLimits& limits);

}  // namespace cleave
