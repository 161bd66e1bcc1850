#pragma once
#include <string>
#include <string_view>

#include "cleave/model/gguf/tokenizer.h"
#include "cleave/text/json.h"

namespace cleave::inline model {

// GGUF stores no lstrip, rstrip or single_word of an added token. llama.cpp has one rule instead,
// by the name of the model: with "phi-3" or "phi3" in general.name, every added token takes the
// white space after it (rstrip), but <unk>, <s> and <|endoftext|>. Source: llama.cpp,
// llama-vocab.cpp.

/// Whether the rule applies to a model of this name (general.name).
bool has_phi3_name(std::string_view name);

/// Whether the rule gives this added token rstrip.
bool has_phi3_rstrip(std::string_view token);

/// The name with which llama.cpp applies the rule exactly if it fits the tokenizer: with "phi-3"
/// added, or with "phi 3" in place of "phi-3" and "phi3". Unchanged without a tokenizer.json.
std::string gguf_model_name(const std::string& name, const GgufTokenizer& tokenizer);

/// Warns of added tokens with attributes that neither GGUF nor the rule has.
void warn_of_lost_attributes(const GgufTokenizer& tokenizer, const Json& tokenizer_json);

}  // namespace cleave::inline model
