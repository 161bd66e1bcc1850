#pragma once
#include <string>

#include "cleave/data/documents.h"
#include "cleave/data/tokens.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// The ids of all documents of a file of texts, one after the other, each ended by the tokenizer's
/// end id where it has one; an empty document gives nothing.
///
/// With a `cache_folder` (made when missing) they are kept there under the hash of the file's
/// content and of the tokenizer, and mapped by the next call of any process; of several that ask at
/// once one does the work. Throws Error(kIo, kFormat) naming file and line.
Tokens tokenized_file(const std::string& path, FileKind kind, const Tokenizer& tokenizer,
                      const std::string& cache_folder);

}  // namespace cleave
