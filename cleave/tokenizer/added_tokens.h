#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cleave/text/json.h"
#include "cleave/tokenizer/normalizer.h"
#include "cleave/tokenizer/token_trie.h"
#include "cleave/tokenizer/vocab.h"

namespace cleave {

/// A token that is found in the text before the model sees it.
struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool special = false;      ///< has no text of its own: left out on request when decoding
  bool normalized = false;   ///< is looked for in the normalised text, not in the original
  bool single_word = false;  ///< only where no word character stands beside it
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it
  std::string text{};  ///< what decoding gives: the content, normalised if it is looked for so
};

/// The tokens added to a model's vocabulary.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// `list` is the "added_tokens" of a tokenizer.json. Throws Error(kFormat) for doubled ids or
  /// contents and ids that `vocab` gives to another token.
  static std::vector<AddedToken> from_json(const Json& list, const Vocab& vocab);
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer);

  /// Gets a part of the text: an id, or what lies between with no id.
  using PartSink = std::function<void(size_t begin, size_t end, std::optional<int64_t> id)>;
  /// Cuts `text` at the tokens with this `normalized`; special ones only with `parse_special`.
  struct Search {
    bool normalized = false;
    bool parse_special = true;
  };
  void split(std::string_view text, const Search& search, const PartSink& sink) const;

  /// The token of an id; null when there is none.
  [[nodiscard]] const AddedToken* find(int64_t id) const;
  /// The id of a content; nothing when no token has it.
  [[nodiscard]] std::optional<int64_t> find(std::string_view content) const;
  [[nodiscard]] const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<int64_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
  TokenTrie original_, normalized_;  // values are numbers in tokens_
};

}  // namespace cleave
