#pragma once
#include <memory>
#include <optional>
#include <string>

#include "cleave/generate/options.h"
#include "cleave/generate/settings.h"
#include "cleave/tokenizer/stream_decoder.h"

namespace cleave {

/// Text of new ids after a prompt: prompt and continuation join up to the text of all ids, so a
/// first space stays. Special tokens are left out.
std::string continuation(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& prompt,
                         const Ids& ids);

/// What cleave_generate writes to stdout: one JSON object a prompt and a line; or the text of one
/// sequence as it comes; or all texts when they are there. Without a tokenizer ids stand for text.
class Printer {
 public:
  /// `num_sequences`: of all prompts together. `tokenizer` may be null.
  Printer(const GenerateOptions& options, int64_t num_sequences,
          std::shared_ptr<const Tokenizer> tokenizer);

  /// Whether ids are printed as they come: one sequence, no beams, neither --json nor --no-stream.
  [[nodiscard]] bool is_streaming() const { return stream_; }
  void begin(const Ids& prompt);
  void next(int64_t id);
  /// Prints what came of prompts, the first of which has number `first`; ends a stream.
  void finish(const std::vector<Ids>& prompts, const Generation& generation, int64_t first);

 private:
  void write(const std::string& text);
  [[nodiscard]] std::string text_of(const Ids& ids) const;
  void print_json(const Ids& prompt, const std::vector<Sequence>& sequences,
                  const Generation& generation);
  void print_text(const Ids& prompt, const std::vector<Sequence>& sequences, int64_t number);

  const GenerateOptions& options_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool stream_;
  bool is_alone_;
  std::optional<StreamDecoder> decoder_;
};

}  // namespace cleave
