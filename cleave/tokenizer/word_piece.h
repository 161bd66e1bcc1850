#pragma once
#include <memory>
#include <string>

#include "cleave/text/json.h"
#include "cleave/tokenizer/token_model.h"
#include "cleave/tokenizer/token_trie.h"

namespace cleave {

/// What WordPiece knows besides its tokens.
struct WordPieceOptions {
  int64_t unk = 0;  ///< for words that no tokens make up
  std::string continuing_prefix = "##";
  int64_t max_characters = 100;  ///< a longer word is unknown
};

/// WordPiece: from the left the longest token each time; all of a word or unknown.
class WordPiece final : public TokenModel {
 public:
  WordPiece(Vocab vocab, WordPieceOptions options);
  /// The "model" of a tokenizer.json. Throws Error(kFormat) naming key and byte.
  static std::unique_ptr<WordPiece> from_json(const Json& model);

  void tokenize(std::string_view piece, std::vector<int64_t>& ids,
                ModelScratch& scratch) const override;
  [[nodiscard]] const Vocab& vocab() const override { return vocab_; }
  [[nodiscard]] std::optional<int64_t> unk_id() const override { return options_.unk; }

 private:
  Vocab vocab_;
  WordPieceOptions options_;
  TokenTrie first_, later_;  // tokens that begin a word; tokens that go on, without the prefix
};

}  // namespace cleave
