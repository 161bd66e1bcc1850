#pragma once
#include <memory>
#include <optional>
#include <string>

#include "cleave/text/json.h"
#include "cleave/tokenizer/flat_map.h"
#include "cleave/tokenizer/token_model.h"

namespace cleave {

/// What a byte-pair encoding knows besides tokens and merges.
struct BpeOptions {
  std::optional<int64_t> unk{};     ///< for characters without a token; without it they are dropped
  std::string continuing_prefix{};  ///< begins every token that does not begin a word
  std::string end_suffix{};         ///< ends every token that ends a word
  bool fuse_unk = false;            ///< neighbouring unknown characters are one unk
  bool byte_fallback = false;       ///< unknown characters are their bytes' tokens "<0x41>"
  bool ignore_merges = false;       ///< a piece that is a token is that token at once
};

/// Byte-pair encoding: neighbouring symbols are merged, the pair of the lowest rank first and of
/// equal ones the leftmost, until no pair has a merge. O(n log n) in the length of a piece.
class Bpe final : public TokenModel {
 public:
  Bpe(Vocab vocab, BpeOptions options);

  /// The "model" of a tokenizer.json. Throws Error(kFormat) naming key and byte, also for merges
  /// whose parts or result are no tokens.
  static std::unique_ptr<Bpe> from_json(const Json& model);

  /// Whether the merge was added: false when a part or the result is no token.
  bool add_merge(std::string_view left, std::string_view right, uint32_t rank);
  void reserve_merges(size_t count) { merges_.reserve(count); }

  void tokenize(std::string_view piece, std::vector<int64_t>& ids,
                ModelScratch& scratch) const override;
  [[nodiscard]] const Vocab& vocab() const override { return vocab_; }
  [[nodiscard]] std::optional<int64_t> unk_id() const override { return options_.unk; }

 private:
  [[nodiscard]] std::vector<int64_t> symbols_of(std::string_view piece) const;
  [[nodiscard]] std::optional<int64_t> symbol_at(std::string_view piece, size_t at,
                                                 size_t bytes) const;
  [[nodiscard]] bool append_bytes(std::string_view character, std::vector<int64_t>& ids) const;
  /// rank << 32 | id of the merged token; UINT64_MAX when the pair has no merge.
  [[nodiscard]] uint64_t merge_of(int64_t left, int64_t right) const;
  void merge_short(std::vector<int64_t>& symbols) const;
  void merge_long(std::vector<int64_t>& symbols) const;

  Vocab vocab_;
  BpeOptions options_;
  FlatMap merges_;  // left id << 32 | right id -> rank << 32 | id
};

}  // namespace cleave
