#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// The text of a growing list of ids, as it comes: text that the ids to come may still change is
/// held back. That is a character whose bytes are not all there, and a run of byte tokens
/// (SentencePiece's <0xE4>) with a wrong one: all of them are U+FFFD then. What push() and finish()
/// return joins up to the decoded text of all ids, unless a wrong byte follows whole characters in
/// one run of byte tokens: those were shown, and come again as U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  /// Ids whose text counts as shown already (a prompt): they decide about spaces only.
  void skip(std::span<const int64_t> ids);
  /// The text that `id` completes; may be empty.
  std::string push(int64_t id);
  /// What was held back and the text of the last `ids`, with U+FFFD for unfinished characters. With
  /// all ids at once it is the decoded text, whatever the bytes.
  std::string finish(std::span<const int64_t> ids = {});

 private:
  std::string take(const std::string& text, size_t settled);

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  bool in_byte_run_ = false;
  std::vector<int64_t> window_;  // ids that the text of the next depends on, then those held back
  size_t num_settled_ = 0;       // ids of the window whose text is shown and stays
  std::string shown_;            // of the window's text
};

}  // namespace cleave
