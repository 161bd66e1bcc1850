#pragma once
#include <memory>
#include <span>
#include <string>

#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// The tokenizer of tokenizer.json and tokenizer_config.json in memory; other files only change the
/// fingerprint. `source` is the file that they were made from, for messages. Throws Error(kFormat)
/// as load_tokenizer() does.
std::shared_ptr<const Tokenizer> load_tokenizer(std::span<const NamedFile> files,
                                                const std::string& source);

}  // namespace cleave
