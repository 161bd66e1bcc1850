#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline generation {

/// Texts that end a sequence. The stop text stays in the sequence, as in transformers.
class StopTexts {
 public:
  /// Throws Error(kUsage) for an empty text, or if `tokenizer` is null.
  StopTexts(std::vector<std::string> texts, std::shared_ptr<const Tokenizer> tokenizer);

  /// Whether one of the texts occurs at the end of the new ids' text. Decodes only as many of the
  /// last ids as the longest text has bytes, so it must be called after each new id.
  [[nodiscard]] bool is_in(std::span<const int64_t> prompt, std::span<const int64_t> ids) const;

 private:
  std::vector<std::string> texts_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  size_t window_ = 0;  // ids
};

}  // namespace cleave::inline generation
