#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cleave/chat/chat_template.h"
#include "cleave/data/dataset.h"
#include "cleave/text/jsonl.h"

namespace cleave::inline data {

/// The sequences of a row: one of a conversation, or the chosen and the rejected one of a pair.
using RowSequences = std::vector<TokenizedChat>;

/// Rows of JSONL files, and how they are tokenized.
struct RowSource {
  /// Opens a file.
  std::function<JsonLines(const std::string& file)> open;
  /// Tokenizes a row; `place` is "FILE:LINE". The first row may decide of which kind the others
  /// must be: copies of the function that are made after it run on several threads.
  std::function<RowSequences(const Json& row, const std::string& place)> read;
  int64_t sequences = 1;  ///< of each row
  /// All that the sequences depend on, except the files and the tokenizer.
  std::vector<uint64_t> settings{};
};

/// Calls `visit` with the sequences of the rows of options.files, in order, and the place of each
/// row. They are tokenized on all threads. With options.cache_folder they are stored there, and
/// later calls read them from there (token_cache.h). Throws Error(kIo, kFormat) with file and line,
/// that of the first row which has one; Stopped.
void for_each_row(const DatasetOptions& options, const RowSource& source,
                  const std::function<void(RowSequences, const std::string& place)>& visit);

}  // namespace cleave::inline data
