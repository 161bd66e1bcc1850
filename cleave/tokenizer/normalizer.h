#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "cleave/text/json.h"

namespace cleave {

/// Rewrites a text before it is split into words: one of the steps that tokenizer.json names.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// The text rewritten. Never throws because of the text; malformed UTF-8 may become U+FFFD.
  [[nodiscard]] virtual std::string normalize(std::string text) const = 0;
};

/// The "normalizer" of a tokenizer.json (not null): Sequence, Prepend, Replace, NFC, NFD, NFKC,
/// NFKD, Lowercase, Strip, StripAccents, BertNormalizer. Throws Error(kFormat) for others.
std::unique_ptr<Normalizer> read_normalizer(const Json& json);

/// What BERT does to a text before splitting it.
struct BertNormalizerOptions {
  bool clean_text = true;     ///< drop control characters, make every white space a space
  bool chinese_chars = true;  ///< set ideographs apart by spaces
  bool strip_accents = true;
  bool lowercase = true;
};
std::unique_ptr<Normalizer> make_bert_normalizer(const BertNormalizerOptions& options);

}  // namespace cleave
