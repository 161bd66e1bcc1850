#include "cleave/tokenizer/word_piece.h"

#include <utility>

#include "cleave/text/utf8.h"

namespace cleave {
namespace {

constexpr int64_t kMostCharacters = 1000;  // of a word: longer ones would make encoding slow

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += next_code_point(text, at).bytes;
  return count;
}

}  // namespace

WordPiece::WordPiece(Vocab vocab, WordPieceOptions options)
    : vocab_(std::move(vocab)), options_(std::move(options)) {
  const std::string& prefix = options_.continuing_prefix;
  for (int64_t id = 0; id < vocab_.end_id(); ++id) {
    const std::optional<std::string_view> token = vocab_.token(id);
    // Of doubled tokens the one that the vocabulary finds counts.
    if (!token || vocab_.find(*token) != id) continue;
    first_.add(*token, id);
    if (token->starts_with(prefix)) later_.add(token->substr(prefix.size()), id);
  }
}

std::unique_ptr<WordPiece> WordPiece::from_json(const Json& model) {
  Vocab vocab = Vocab::from_json(model.at("vocab"));
  const std::string unk = model.string_or("unk_token", "[UNK]");
  const std::optional<int64_t> unk_id = vocab.find(unk);
  if (!unk_id) model.fail(str("expected the unknown token \"", unk, "\" in the vocabulary"));
  WordPieceOptions options{
      .unk = *unk_id,
      .continuing_prefix = model.string_or("continuing_subword_prefix", "##"),
      .max_characters = model.int_or("max_input_chars_per_word", 100, 1, kMostCharacters)};
  return std::make_unique<WordPiece>(std::move(vocab), std::move(options));
}

void WordPiece::tokenize(std::string_view piece, std::vector<int64_t>& ids,
                         ModelScratch& /*scratch*/) const {
  if (count_characters(piece) > options_.max_characters) return ids.push_back(options_.unk);
  const size_t before = ids.size();
  for (size_t at = 0; at < piece.size();) {
    const auto match = (at == 0 ? first_ : later_).longest(piece.substr(at));
    if (!match) {
      ids.resize(before);
      return ids.push_back(options_.unk);
    }
    ids.push_back(match->value);
    at += match->length;
  }
}

}  // namespace cleave
