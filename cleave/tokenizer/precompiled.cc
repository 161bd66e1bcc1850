// The normalizer of SentencePiece's models in tokenizer.json.
#include <cstring>
#include <utility>

#include "cleave/text/utf8.h"
#include "cleave/tokenizer/steps.h"
#include "cleave/tokenizer/unicode.h"

namespace cleave::inline tokenizer {
namespace {

/// A table of replacements: a double-array trie of the replaced texts, whose values are byte
/// positions in a list of replacements that end in a zero byte. Source: the format of Darts-clone
/// (Yata) and its use in SentencePiece's normalizer.
class CharsMap {
 public:
  /// `bytes`: the size of the trie in bytes, its 32-bit units and the replacements, little-endian.
  static std::optional<CharsMap> parse(std::string_view bytes) {
    uint32_t trie_bytes = 0;
    if (bytes.size() < sizeof(trie_bytes)) return std::nullopt;
    std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
    bytes.remove_prefix(sizeof(trie_bytes));
    const size_t num_units = trie_bytes / sizeof(uint32_t);
    if (num_units == 0 || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes > bytes.size()) {
      return std::nullopt;
    }
    CharsMap map;
    map.units_.resize(num_units);
    std::memcpy(map.units_.data(), bytes.data(), trie_bytes);
    map.replacements_ = bytes.substr(trie_bytes);
    return map;
  }

  /// The replacement of the shortest text in the table that `text` begins with; nullopt if there
  /// is none.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view text) const {
    size_t at = offset(units_[0]);
    for (const char c : text) {
      const auto byte = static_cast<uint8_t>(c);
      at ^= byte;
      if (byte == 0 || at >= units_.size() || label(units_[at]) != byte) return std::nullopt;
      const bool ends = (units_[at] >> 8 & 1) != 0;
      at ^= offset(units_[at]);
      if (ends) return replacement(at);
    }
    return std::nullopt;
  }

 private:
  /// The position of a node's children, to be combined with the byte of each.
  static size_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }
  /// The byte that leads to a node; above 255 for the unit of a value.
  static uint32_t label(uint32_t unit) { return unit & 0x800000FF; }

  [[nodiscard]] std::optional<std::string_view> replacement(size_t unit) const {
    if (unit >= units_.size()) return std::nullopt;
    const size_t begin = units_[unit] & 0x7FFFFFFF;
    if (begin >= replacements_.size()) return std::nullopt;
    const std::string_view rest = std::string_view(replacements_).substr(begin);
    return rest.substr(0, rest.find('\0'));
  }

  std::vector<uint32_t> units_;
  std::string replacements_;
};

/// Replaces characters, and short clusters of characters, by the table. As in `tokenizers`, a
/// cluster that only begins with an entry is replaced as a whole.
class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(CharsMap map) : map_(std::move(map)) {}
  [[nodiscard]] std::string normalize(std::string text) const override {
    constexpr size_t kShort = 6;  // bytes; longer clusters are replaced by character
    const std::string_view all = text;
    std::string out;
    out.reserve(text.size());
    for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      end = cluster_end(all, begin);
      const std::string_view cluster = all.substr(begin, end - begin);
      const auto whole = cluster.size() < kShort ? map_.find(cluster) : std::nullopt;
      if (whole) {
        out += *whole;
      } else {
        append_by_character(cluster, out);
      }
    }
    return out;
  }

 private:
  void append_by_character(std::string_view cluster, std::string& out) const {
    for (size_t at = 0; at < cluster.size();) {
      const CodePoint point = next_code_point(cluster, at);
      if (const auto replaced = map_.find(cluster.substr(at, point.bytes))) {
        out += *replaced;
      } else {
        append_utf8(out, point.value);
      }
      at += point.bytes;
    }
  }

  CharsMap map_;
};

}  // namespace

std::unique_ptr<Normalizer> read_precompiled(const Json& json) {
  const Json text = json.at("precompiled_charsmap");
  const std::optional<std::string> bytes = decode_base64(text.as_string());
  if (!bytes) text.fail("expected base64");
  std::optional<CharsMap> map = CharsMap::parse(*bytes);
  if (!map) text.fail("expected the size of a trie, the trie and its replacements");
  return std::make_unique<Precompiled>(*std::move(map));
}

}  // namespace cleave::inline tokenizer
