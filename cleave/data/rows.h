#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/data/dataset.h"

namespace cleave {

struct RowsOptions {
  int64_t vocab_size = 0;      ///< ids lie in [0, vocab_size); 0: any id below 2^31
  bool needs_labels = false;   ///< a row without `labels` is refused
  int64_t num_classes = 0;     ///< above 0: `label` (or `labels`) is one number, the row's class
  std::string cache_folder{};  ///< for what does not fit into some MiB; empty = memory only
};

/// The rows of JSONL files, in order. Each is one sample, unchanged: `input_ids`, and optionally
/// `labels`, `attention_mask` and `token_type_ids` of the same length. Labels are ids or -100.
/// Throws Error(kFormat) with file and line, Error(kUsage) if there are no rows.
std::shared_ptr<const Dataset> rows_dataset(const std::vector<std::string>& files,
                                            const RowsOptions& options);

}  // namespace cleave
