#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cleave/text/json.h"
#include "cleave/tokenizer/steps.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline tokenizer {

/// Hash map from 64-bit keys to 64-bit values with linear probing. It takes half the time of
/// std::unordered_map for a vocabulary with hundreds of thousands of merges. Keys cannot be
/// removed; the key UINT64_MAX is not allowed.
class FlatMap {
 public:
  /// Reserves space for `count` keys.
  void reserve(size_t count) {
    size_t slots = 16;
    while (slots < count * 2) slots *= 2;
    if (slots > slots_.size()) rehash(slots);
  }

  /// Sets the value of a new or existing key.
  void set(uint64_t key, uint64_t value) {
    if (slots_.size() < (count_ + 1) * 2) reserve(count_ * 2 + 8);
    Slot& slot = slots_[find_slot(key)];
    count_ += slot.key == kEmpty ? 1 : 0;
    slot = {key, value};
  }

  /// The value of a key; nullopt if it was never set.
  [[nodiscard]] std::optional<uint64_t> find(uint64_t key) const {
    if (slots_.empty()) return std::nullopt;
    const Slot& slot = slots_[find_slot(key)];
    if (slot.key == kEmpty) return std::nullopt;
    return slot.value;
  }

  [[nodiscard]] size_t size() const { return count_; }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    uint64_t value = 0;
  };

  [[nodiscard]] size_t find_slot(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    uint64_t hash = key * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32;
    size_t at = hash & mask;
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }

  void rehash(size_t slots) {
    std::vector<Slot> old(slots);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) slots_[find_slot(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

/// A trie of byte strings with a value each, for finding those at a position of a text.
class TokenTrie {
 public:
  /// A string that was found.
  struct Match {
    int64_t value = 0;
    size_t length = 0;  ///< in bytes
  };

  /// Adds a string, or replaces the value of an equal one. Ignores the empty string.
  void add(std::string_view text, int64_t value);

  /// Calls found(Match) for every string that `text` begins with, the shortest first.
  template <class Found>
  void for_each_prefix(std::string_view text, const Found& found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const std::optional<uint64_t> next = edges_.find(edge(node, text[i]));
      if (!next) return;
      node = static_cast<uint32_t>(*next);
      if (values_[node] != kNone) found(Match{.value = values_[node], .length = i + 1});
    }
  }

  /// The longest string that `text` begins with.
  [[nodiscard]] std::optional<Match> longest(std::string_view text) const;

  /// Whether any string begins with this byte.
  [[nodiscard]] bool begins_with(char byte) const { return first_[static_cast<uint8_t>(byte)]; }
  [[nodiscard]] bool empty() const { return values_.size() == 1; }

 private:
  static uint64_t edge(uint32_t node, char byte) {
    return (uint64_t{node} << 8) | static_cast<uint8_t>(byte);
  }

  FlatMap edges_;
  std::vector<int64_t> values_{kNone};  // per node; node 0 is the root
  std::array<bool, 256> first_{};
  static constexpr int64_t kNone = -1;
};

/// Largest id in a file. Bounds the memory that an invalid id can cause to be allocated.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 24) - 1;

/// Bidirectional map between the tokens of a model and their ids, which may have gaps.
class Vocab {
 public:
  /// Reads {"token": id, ...}. Throws Error(kFormat) for ids outside [0, kMaxTokenId], duplicate
  /// ids, and an empty object.
  static Vocab from_json(const Json& object);
  /// Tokens with the ids 0, 1, 2, ...; find() returns the last of equal tokens, as BERT does.
  static Vocab from_list(std::vector<std::string> tokens);

  /// The id of a token; nullopt if it is unknown.
  [[nodiscard]] std::optional<int64_t> find(std::string_view token) const;
  /// The token of an id; nullopt if there is none.
  [[nodiscard]] std::optional<std::string_view> token(int64_t id) const;
  /// Largest id + 1.
  [[nodiscard]] int64_t end_id() const { return static_cast<int64_t>(entry_of_id_.size()); }
  [[nodiscard]] size_t size() const { return tokens_.size(); }

 private:
  void build_index();
  [[nodiscard]] size_t slot_of(std::string_view token) const;

  std::vector<std::string> tokens_;    // in file order
  std::vector<int64_t> ids_;           // of tokens_
  std::vector<uint32_t> entry_of_id_;  // index into tokens_ + 1; 0: gap
  std::vector<uint32_t> slots_;        // hash table of index into tokens_ + 1; 0: empty
};

/// Longest content of an added token: bounds the search at every position of a text.
inline constexpr size_t kMaxContentBytes = 1024;

/// A token that is searched in the text before the model tokenizes the rest.
struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool special = false;      ///< decoding with skip_special skips it
  bool normalized = false;   ///< searched in the normalized text, otherwise in the original
  bool single_word = false;  ///< only where no word character is next to it
  bool lstrip = false;       ///< includes the white space before it
  bool rstrip = false;       ///< includes the white space after it
  std::string text{};        ///< decoded text: `content`, normalized if `normalized` is set
};

/// The tokens added to a model's vocabulary.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Reads the "added_tokens" of a tokenizer.json. Throws Error(kFormat) for duplicate ids or
  /// contents, and for ids or contents that `vocab` assigns differently.
  static std::vector<AddedToken> from_json(const Json& list, const Vocab& vocab);
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer);

  /// Receives the parts of a text: an added token with its id, or the text between without an id.
  using PartSink = std::function<void(size_t begin, size_t end, std::optional<int64_t> id)>;
  /// Which tokens split() searches.
  struct Search {
    bool normalized = false;    ///< those whose `normalized` has this value
    bool parse_special = true;  ///< special ones too
  };
  /// Splits `text` at added tokens and passes the parts to `sink` in order. As in
  /// `tokenizers`, tokens in white space that another token strips are found too.
  void split(std::string_view text, const Search& search, const PartSink& sink) const;

  /// The token of an id; null if there is none.
  [[nodiscard]] const AddedToken* find(int64_t id) const;
  /// The id of a token's content; nullopt if there is none.
  [[nodiscard]] std::optional<int64_t> find(std::string_view content) const;
  [[nodiscard]] const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<int64_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
  TokenTrie original_, normalized_;  // values are indices into tokens_
};

/// Largest id + 1 of a model's vocabulary and the added tokens.
int64_t vocab_size_of(const Vocab& vocab, const std::vector<AddedToken>& added);

}  // namespace cleave::inline tokenizer
