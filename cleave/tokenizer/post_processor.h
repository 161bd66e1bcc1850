#pragma once
#include <cstdint>

#include "cleave/text/json.h"
#include "cleave/tokenizer/sequence_template.h"

namespace cleave {

/// The "post_processor" of a tokenizer.json (not null): TemplateProcessing, BertProcessing,
/// RobertaProcessing, ByteLevel (changes no ids), or a Sequence of them. Ids are in
/// [0, vocab_size). Throws Error(kFormat) for anything else.
SequenceTemplate read_post_processor(const Json& json, int64_t vocab_size);

/// BERT's: begin A end, begin A end B end, the second part with type 1.
SequenceTemplate make_bert_template(int64_t cls, int64_t sep);

}  // namespace cleave
