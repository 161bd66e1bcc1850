#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/tokenizer/added_tokens.h"
#include "cleave/tokenizer/normalizer.h"
#include "cleave/tokenizer/pre_tokenizer.h"
#include "cleave/tokenizer/token_decoder.h"
#include "cleave/tokenizer/token_model.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// What a tokenizer.json describes, or an older set of files in the same terms.
struct PipelineParts {
  std::string kind;
  std::unique_ptr<Normalizer> normalizer;       ///< may be absent
  std::unique_ptr<PreTokenizer> pre_tokenizer;  ///< may be absent
  std::unique_ptr<TokenModel> model;
  std::unique_ptr<TokenDecoder> decoder;  ///< may be absent: tokens joined by spaces
  std::vector<AddedToken> added;
  SequenceTemplate sequence_template;
  SpecialIds special;
  uint64_t fingerprint = 0;
};

/// Largest id + 1 of a model's vocabulary and the added tokens.
int64_t vocab_size_of(const Vocab& vocab, const std::vector<AddedToken>& added);

/// The tokenizer that runs the parts in order: added tokens, normaliser, pre-tokeniser, model.
std::unique_ptr<Tokenizer> make_pipeline(PipelineParts parts);

/// The parts of a tokenizer.json; special ids and fingerprint are left open. Throws Error(kFormat).
PipelineParts read_pipeline(const Json& json);

}  // namespace cleave
