#pragma once
#include <string>

#include "cleave/data/documents.h"
#include "cleave/data/tokens.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// The ids of all documents of a file of kind kText or kJsonTexts, in order. Each document ends
/// with the tokenizer's end id, if it has one; an empty document has no ids.
///
/// With a `cache_folder` (created if missing) the ids are stored there under a hash of the file's
/// content and the tokenizer, and later calls of any process read them from there. If several
/// processes call at the same time, one tokenizes. Throws Error(kIo, kFormat) with file and line.
Tokens tokenized_file(const std::string& path, FileKind kind, const Tokenizer& tokenizer,
                      const std::string& cache_folder);

}  // namespace cleave
