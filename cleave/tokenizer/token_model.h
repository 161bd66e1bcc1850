#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cleave/text/json.h"
#include "cleave/tokenizer/vocab.h"

namespace cleave::inline tokenizer {

/// Cache of one encode() call: the ids of pieces that were tokenized before.
struct PieceCache {
  std::unordered_map<std::string, std::vector<int64_t>> ids;
};

/// Turns a piece of text into ids.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the ids of `piece` to `ids`. Never throws because of the text.
  virtual void tokenize(std::string_view piece, std::vector<int64_t>& ids,
                        PieceCache& cache) const = 0;
  [[nodiscard]] virtual const Vocab& vocab() const = 0;
  /// Id of the token for unknown text; nullopt if there is none.
  [[nodiscard]] virtual std::optional<int64_t> unk_id() const = 0;
};

/// Options of byte-pair encoding.
struct BpeOptions {
  std::optional<int64_t> unk{};     ///< for characters without a token; nullopt: drop them
  std::string continuing_prefix{};  ///< prefix of every token that does not begin a word
  std::string end_suffix{};         ///< suffix of every token that ends a word
  bool fuse_unk = false;            ///< adjacent unknown characters become one unk
  bool byte_fallback = false;       ///< unknown characters become byte tokens "<0x41>"
  bool ignore_merges = false;       ///< a piece that is a token becomes it without merges
};

/// Byte-pair encoding: merges adjacent symbols until no pair has a merge; the pair with the lowest
/// rank first, among equal pairs the leftmost. O(n log n) in the length of a piece.
class Bpe final : public TokenModel {
 public:
  Bpe(Vocab vocab, BpeOptions options);

  /// Reads the "model" of a tokenizer.json. Throws Error(kFormat) naming key and byte, also for
  /// merges whose parts or result are not tokens.
  static std::unique_ptr<Bpe> from_json(const Json& model);

  /// Adds a merge. Returns false if a part or the result is not a token.
  bool add_merge(std::string_view left, std::string_view right, uint32_t rank);
  void reserve_merges(size_t count) { merges_.reserve(count); }

  void tokenize(std::string_view piece, std::vector<int64_t>& ids,
                PieceCache& cache) const override;
  [[nodiscard]] const Vocab& vocab() const override { return vocab_; }
  [[nodiscard]] std::optional<int64_t> unk_id() const override { return options_.unk; }

 private:
  [[nodiscard]] std::vector<int64_t> symbols_of(std::string_view piece) const;
  [[nodiscard]] std::optional<int64_t> symbol_at(std::string_view piece, size_t at,
                                                 size_t bytes) const;
  [[nodiscard]] bool append_bytes(std::string_view character, std::vector<int64_t>& ids) const;
  /// rank << 32 | id of the merged token; UINT64_MAX if the pair has no merge.
  [[nodiscard]] uint64_t merge_of(int64_t left, int64_t right) const;
  void merge_short(std::vector<int64_t>& symbols) const;
  void merge_long(std::vector<int64_t>& symbols) const;

  Vocab vocab_;
  BpeOptions options_;
  FlatMap merges_;  // left id << 32 | right id -> rank << 32 | id
};

/// Options of WordPiece.
struct WordPieceOptions {
  int64_t unk = 0;  ///< for words that cannot be split into tokens
  std::string continuing_prefix = "##";
  int64_t max_characters = 100;  ///< a longer word becomes unk
};

/// WordPiece: splits a word from the left into the longest tokens; the whole word becomes unk if
/// that fails.
class WordPiece final : public TokenModel {
 public:
  WordPiece(Vocab vocab, WordPieceOptions options);
  /// Reads the "model" of a tokenizer.json. Throws Error(kFormat) naming key and byte.
  static std::unique_ptr<WordPiece> from_json(const Json& model);

  void tokenize(std::string_view piece, std::vector<int64_t>& ids,
                PieceCache& cache) const override;
  [[nodiscard]] const Vocab& vocab() const override { return vocab_; }
  [[nodiscard]] std::optional<int64_t> unk_id() const override { return options_.unk; }

 private:
  Vocab vocab_;
  WordPieceOptions options_;
  TokenTrie first_, later_;  // tokens that begin a word; others, without their prefix
};

}  // namespace cleave::inline tokenizer
