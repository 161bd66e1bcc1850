#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// The text of a growing list of ids, as it comes: characters whose bytes are not all there yet are
/// held back. What push() and finish() return joins up to the decoded text of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  /// Ids whose text counts as shown already (a prompt): they decide about spaces only.
  void skip(std::span<const int64_t> ids);
  /// The text that `id` completes; may be empty.
  std::string push(int64_t id);
  /// What was held back, with U+FFFD for unfinished characters.
  std::string finish();

 private:
  [[nodiscard]] std::string shown_text() const;
  std::string take(const std::string& text);

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::vector<int64_t>
      window_;            // the last shown ids, which the text of the next depends on, + held
  size_t num_shown_ = 0;  // of the window
};

}  // namespace cleave
