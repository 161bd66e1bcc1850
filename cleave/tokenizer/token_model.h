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

/// Cache of one encode() call: the ids of short pieces that were tokenized before.
class PieceCache {
 public:
  /// Appends the ids of `piece` to `ids`: those in the cache, or else what `make(piece)` returns.
  template <class Make>
  void append(std::string_view piece, std::vector<int64_t>& ids, const Make& make) {
    constexpr size_t kMaxBytes = 64;  // longest piece in the cache
    constexpr size_t kMaxPieces = 1 << 15;
    if (piece.size() > kMaxBytes) {
      const std::vector<int64_t> made = make(piece);
      ids.insert(ids.end(), made.begin(), made.end());
      return;
    }
    auto found = ids_.find(std::string(piece));
    if (found == ids_.end()) {
      if (ids_.size() >= kMaxPieces) ids_.clear();
      found = ids_.emplace(piece, make(piece)).first;
    }
    ids.insert(ids.end(), found->second.begin(), found->second.end());
  }

 private:
  std::unordered_map<std::string, std::vector<int64_t>> ids_;
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

/// Options of Unigram.
struct UnigramOptions {
  int64_t unk = 0;             ///< for characters without a token; adjacent ones become one unk
  bool byte_fallback = false;  ///< unknown characters become byte tokens "<0x41>"
};

/// Unigram, one of the models of SentencePiece: of all ways to split a piece into tokens, the one
/// with the highest sum of the tokens' scores, which are log probabilities. A character without a
/// token has 10 less than the lowest score. Source: Kudo, 2018 (arXiv 1804.10959), and the package
/// `tokenizers`, which decides between equal sums.
class Unigram final : public TokenModel {
 public:
  /// `scores`: one for each id of `vocab`, which has no gaps.
  Unigram(Vocab vocab, std::vector<double> scores, const UnigramOptions& options);
  /// Reads the "model" of a tokenizer.json. Throws Error(kFormat) naming key and byte.
  static std::unique_ptr<Unigram> from_json(const Json& model);

  void tokenize(std::string_view piece, std::vector<int64_t>& ids,
                PieceCache& cache) const override;
  [[nodiscard]] const Vocab& vocab() const override { return vocab_; }
  [[nodiscard]] std::optional<int64_t> unk_id() const override { return options_.unk; }

 private:
  struct Node;
  [[nodiscard]] std::vector<Node> best_paths(std::string_view piece) const;
  [[nodiscard]] std::vector<int64_t> ids_of(std::string_view piece) const;

  Vocab vocab_;
  std::vector<double> scores_;
  UnigramOptions options_;
  double unk_score_ = 0;
  TokenTrie tokens_;
};

/// Appends the byte tokens "<0x41>" of a text; false, without change, unless all of them exist.
bool append_byte_tokens(const Vocab& vocab, std::string_view text, std::vector<int64_t>& ids);

}  // namespace cleave::inline tokenizer
