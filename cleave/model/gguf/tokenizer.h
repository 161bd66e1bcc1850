#pragma once
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cleave/chat/chat_template.h"
#include "cleave/format/gguf.h"
#include "cleave/model/facts.h"
#include "cleave/text/json.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline model {

struct ModelFolder;

/// The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json (with the chat
/// template); empty if the file has none. Throws Error(kFormat) for a tokenizer that is neither
/// SentencePiece BPE ("llama") nor byte-level BPE ("gpt2") with a known pre-tokenizer, for scores
/// that are not finite, and for SentencePiece tokens of more than 1024 bytes or with more than
/// 64 MiB of merges.
std::vector<NamedFile> tokenizer_from_gguf(const Gguf& file);

/// A tokenizer to be written.
struct GgufTokenizer {
  std::span<const NamedFile> files;      ///< of its folder; empty: none
  const Tokenizer* tokenizer = nullptr;  ///< made from them
};

/// Adds tokenizer.ggml.* and the chat template; without a tokenizer, only its absence and the
/// special ids. Ids that the tokenizer lacks get an unused token, special ids that it lacks come
/// from the model's `facts`. Added tokens and special ids beyond the model's vocab_size are left
/// out, with a warning of the tokens. Throws Error(kUsage) for a tokenizer that llama.cpp does not
/// have: WordPiece, another pre-tokenizer, other ids beyond the model's, or one without
/// tokenizer.json.
void add_gguf_tokenizer(GgufMetadata& metadata, const GgufTokenizer& tokenizer,
                        const ModelFacts& facts);

/// Whether `path`, a model folder or a GGUF file, has a tokenizer.
bool has_model_tokenizer(const std::string& path);
/// Where a model's tokenizer is: with an adapter the adapter's folder, or if that has none, the
/// base model's path; otherwise the model's path.
std::string tokenizer_source(const ModelFolder& folder);
/// Whether a tokenizer is that of the model's own files; false if they cannot be read.
bool is_tokenizer_of(const ModelFolder& folder, const Tokenizer& tokenizer);
/// Its tokenizer. Throws as load_tokenizer() and tokenizer_from_gguf() do.
std::shared_ptr<const Tokenizer> load_model_tokenizer(const std::string& path);
/// The tokenizer's files and chat templates in memory, which checkpoints and converted folders get.
/// Names are NAME or FOLDER/NAME.
std::vector<NamedFile> model_tokenizer_files(const std::string& path);
/// load_chat_template() for `path`, a model folder or a GGUF file.
std::shared_ptr<const ChatTemplate> load_model_chat_template(const std::string& wanted,
                                                             const std::string& path,
                                                             const Tokenizer& tokenizer,
                                                             std::time_t now);

}  // namespace cleave::inline model

/// load_model_tokenizer() and load_model_chat_template(), which the front end looks up in libcleave
/// by these names.
extern "C" void cleave_load_tokenizer(const std::string& path,
                                      std::shared_ptr<const cleave::Tokenizer>& tokenizer);
extern "C" void cleave_load_chat_template(
    const std::string& path, const cleave::Tokenizer& tokenizer,
    std::shared_ptr<const cleave::ChatTemplate>& chat_template);
