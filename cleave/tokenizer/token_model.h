#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cleave/tokenizer/vocab.h"

namespace cleave {

/// Memory that one call of encode lends to the model: results of words seen before.
struct ModelScratch {
  std::unordered_map<std::string, std::vector<int64_t>> seen;
};

/// Turns one piece of text into ids.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the ids of `piece` to `ids`. Never throws because of the text.
  virtual void tokenize(std::string_view piece, std::vector<int64_t>& ids,
                        ModelScratch& scratch) const = 0;
  [[nodiscard]] virtual const Vocab& vocab() const = 0;
  [[nodiscard]] virtual std::optional<int64_t> unk_id() const = 0;
};

}  // namespace cleave
