#include "cleave/generate/printer.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cleave/base/error.h"

namespace cleave::inline generation {
namespace {

/// `value` as JSON, which has no infinity or NaN: these become null.
nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string continuation(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& prompt,
                         const Ids& ids) {
  StreamDecoder decoder(tokenizer);
  decoder.skip(prompt);
  return decoder.finish(ids);
}

Printer::Printer(const GenerateOptions& options, int64_t num_sequences,
                 std::shared_ptr<const Tokenizer> tokenizer)
    : options_(options),
      tokenizer_(std::move(tokenizer)),
      stream_(options.stream && !options.json && options.num_beams == 1 && num_sequences == 1),
      is_alone_(num_sequences == 1) {}

void write_stdout(const std::string& text) {
  const bool done =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  CLEAVE_CHECK(done, Code::kIo,
               "stdout: cannot be written: ", std::generic_category().message(errno));
}

std::string Printer::text_of(const Ids& ids) const {
  if (tokenizer_) return tokenizer_->decode(ids, /*skip_special=*/true);
  std::string text;
  for (const int64_t id : ids) text += str(text.empty() ? "" : " ", id);
  return text;
}

void Printer::begin(const Ids& prompt) {
  write_stdout(text_of(prompt));
  if (!tokenizer_) return;
  decoder_.emplace(tokenizer_);
  decoder_->skip(prompt);
}

void Printer::next(int64_t id) {
  const std::string text = decoder_ ? decoder_->push(id) : str(" ", id);
  if (!text.empty()) write_stdout(text);
}

void Printer::finish(const Ids& prompt, const Generation& generation, int64_t number) {
  const std::vector<Sequence>& sequences = generation.prompts[static_cast<size_t>(number)];
  if (stream_) {
    write_stdout((decoder_ ? decoder_->finish() : "") + "\n");
  } else if (options_.json) {
    print_json(prompt, sequences, generation);
  } else {
    print_text(prompt, sequences, number);
  }
}

void Printer::print_json(const Ids& prompt, const std::vector<Sequence>& sequences,
                         const Generation& generation) {
  nlohmann::ordered_json row;
  row["prompt_ids"] = prompt;
  row["sequences"] = nlohmann::ordered_json::array();
  for (const Sequence& sequence : sequences) {
    nlohmann::ordered_json entry;
    entry["ids"] = sequence.ids;
    entry["text"] = nullptr;
    if (tokenizer_) entry["text"] = continuation(tokenizer_, prompt, sequence.ids);
    entry["score"] = number(sequence.score);
    row["sequences"].push_back(std::move(entry));
  }
  row["tokens_per_s"] = number(generation.tokens_per_s());
  row["first_token_s"] = number(generation.first_token_s);
  write_stdout(row.dump() + "\n");
}

void Printer::print_text(const Ids& prompt, const std::vector<Sequence>& sequences,
                         int64_t number) {
  const std::string begin = text_of(prompt);
  for (size_t s = 0; s < sequences.size(); ++s) {
    const Ids& ids = sequences[s].ids;
    std::string text = begin;
    text += tokenizer_ ? continuation(tokenizer_, prompt, ids) : str(" ", text_of(ids));
    if (!is_alone_) {
      write_stdout(str("--- prompt ", number + 1, ", sequence ", s + 1, ", score ",
                       sequences[s].score, "\n"));
    }
    write_stdout(text + "\n");
  }
}

}  // namespace cleave::inline generation
