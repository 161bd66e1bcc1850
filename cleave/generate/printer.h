#pragma once
#include <memory>
#include <optional>
#include <string>

#include "cleave/generate/options.h"
#include "cleave/generate/settings.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline generation {

/// The text of new ids after a prompt. Prompt text + continuation = text of all ids, so a leading
/// space is kept. Special tokens are omitted.
std::string continuation(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& prompt,
                         const Ids& ids);

/// Writes the text to stdout immediately. Throws Error(kIo).
void write_stdout(const std::string& text);

/// The output of cleave_generate on stdout: one JSON object per prompt, one per line; or the text
/// of one sequence, streamed; or all texts at the end. Without a tokenizer, ids instead of text.
class Printer {
 public:
  /// `num_sequences` is the total over all prompts. `tokenizer` may be null.
  Printer(const GenerateOptions& options, int64_t num_sequences,
          std::shared_ptr<const Tokenizer> tokenizer);

  /// Whether ids are printed immediately: one sequence, no beams, neither --json nor --no-stream.
  [[nodiscard]] bool is_streaming() const { return stream_; }
  void begin(const Ids& prompt);
  void next(int64_t id);
  /// Prints the results of prompt `number` (from 0); ends a stream.
  void finish(const Ids& prompt, const Generation& generation, int64_t number);

 private:
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

}  // namespace cleave::inline generation
