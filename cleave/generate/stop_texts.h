#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// Texts that end a sequence. The one that ends it stays in the sequence, as in transformers.
class StopTexts {
 public:
  /// Throws Error(kUsage) for an empty text, or when there is no tokenizer to read the ids with.
  StopTexts(std::vector<std::string> texts, std::shared_ptr<const Tokenizer> tokenizer);

  /// Whether one of the texts is in the newest part of the new ids' text. Only the last ids are
  /// read, as many as a text may have bytes, so the newest id must be asked about each time.
  [[nodiscard]] bool is_in(std::span<const int64_t> prompt, std::span<const int64_t> ids) const;

 private:
  std::vector<std::string> texts_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  size_t window_ = 0;  // ids
};

}  // namespace cleave
