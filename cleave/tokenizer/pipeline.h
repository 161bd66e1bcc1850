#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/text/json.h"
#include "cleave/tokenizer/steps.h"
#include "cleave/tokenizer/token_model.h"
#include "cleave/tokenizer/tokenizer.h"
#include "cleave/tokenizer/vocab.h"

namespace cleave::inline tokenizer {

/// The parts of a tokenizer, as in a tokenizer.json.
struct PipelineParts {
  std::string kind;
  std::unique_ptr<Normalizer> normalizer;       ///< may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  ///< may be null
  std::unique_ptr<TokenModel> model;
  std::unique_ptr<TokenDecoder> decoder;  ///< null: tokens are joined by spaces
  std::vector<AddedToken> added;
  SequenceTemplate sequence_template;
  SpecialIds special;
  bool splits_special = false;  ///< text never becomes a special token
  uint64_t fingerprint = 0;
};

/// The tokenizer that applies the parts in order: added tokens, normalizer, pre-tokenizer, model.
std::unique_ptr<Tokenizer> make_pipeline(PipelineParts parts);

/// Reads the parts of a tokenizer.json, except special ids and fingerprint. Throws Error(kFormat).
PipelineParts read_pipeline(const Json& json);

/// A begin token before every text, and an end token after it.
SequenceTemplate make_text_template(std::optional<int64_t> begin, std::optional<int64_t> end);

/// BERT's template: cls A sep; cls A sep B sep, where the second text and its sep have type 1.
SequenceTemplate make_bert_template(int64_t cls, int64_t sep);
/// RoBERTa's template: cls A sep; cls A sep sep B sep, of type 0.
SequenceTemplate make_roberta_template(int64_t cls, int64_t sep);

}  // namespace cleave::inline tokenizer
