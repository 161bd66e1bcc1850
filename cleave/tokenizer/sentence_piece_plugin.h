#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "cleave/tokenizer/tokenizer.h"
#include "cleave/tokenizer/vocab.h"

/// Exported by libcleave_sentencepiece and found by dlsym: sets `out` to the tokenizer of a
/// SentencePiece model. `path` is for messages. Text that spells a control token stays text, as in
/// SentencePiece. Throws Error(kFormat) if the bytes are not such a model.
extern "C" void cleave_sentence_piece(std::string_view bytes, const std::string& path,
                                      const cleave::SpecialNames& names,
                                      std::unique_ptr<cleave::Tokenizer>* out);
