#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/text/json.h"

namespace cleave {

/// Largest id that a file may give: what keeps a wrong id from asking for terabytes.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 24) - 1;

/// The tokens of a model and their ids: both ways, ids may have gaps.
class Vocab {
 public:
  /// {"token": id, ...}. Throws Error(kFormat) for ids outside [0, kMaxTokenId], doubled ids, and
  /// when there is no token.
  static Vocab from_json(const Json& object);
  /// Tokens with the ids 0, 1, 2, ...; of equal tokens the last one is found, as in the reference.
  static Vocab from_list(std::vector<std::string> tokens);

  /// The id of a token; nothing when it is unknown.
  [[nodiscard]] std::optional<int64_t> find(std::string_view token) const;
  /// The token of an id; nothing for a gap or outside.
  [[nodiscard]] std::optional<std::string_view> token(int64_t id) const;
  /// Largest id + 1.
  [[nodiscard]] int64_t end_id() const { return static_cast<int64_t>(entry_of_id_.size()); }
  [[nodiscard]] size_t size() const { return tokens_.size(); }

 private:
  void build_index();
  [[nodiscard]] size_t slot_of(std::string_view token) const;

  std::vector<std::string> tokens_;    // in file order
  std::vector<int64_t> ids_;           // of tokens_
  std::vector<uint32_t> entry_of_id_;  // number in tokens_ + 1; 0: gap
  std::vector<uint32_t> slots_;        // hash table of number in tokens_ + 1; 0: empty
};

}  // namespace cleave
