#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "cleave/tokenizer/special_names.h"
#include "cleave/tokenizer/tokenizer.h"

/// Exported by libcleave_sentencepiece and found by dlsym: sets `out` to the tokenizer of a
/// SentencePiece model in the file `path`, whose folder may have added_tokens.json. Text that
/// spells a special or added token becomes that token, as in transformers. Throws Error(kFormat) if
/// the bytes are not such a model.
extern "C" void cleave_sentence_piece(std::string_view bytes, const std::filesystem::path& path,
                                      const cleave::SpecialNames& names, uint64_t fingerprint,
                                      std::unique_ptr<cleave::Tokenizer>* out);
