#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "cleave/tokenizer/special_names.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// A tokenizer.model of SentencePiece. Text that spells a control token stays text, as in
/// SentencePiece. Throws Error(kFormat) naming `path` when the bytes are no such model.
std::unique_ptr<Tokenizer> make_sentence_piece(std::string_view bytes, const std::string& path,
                                               const SpecialNames& names);

}  // namespace cleave

/// What libcleave_sentencepiece exports: make_sentence_piece behind a name that dlsym finds.
extern "C" void cleave_sentence_piece(std::string_view bytes, const std::string& path,
                                      const cleave::SpecialNames& names,
                                      std::unique_ptr<cleave::Tokenizer>* out);
