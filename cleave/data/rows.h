#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/data/dataset.h"

namespace cleave {

struct RowsOptions {
  int64_t vocab_size = 0;     ///< ids lie in [0, vocab_size); 0: any that fits 31 bits
  bool needs_labels = false;  ///< a row without `labels` is refused
  int64_t num_classes = 0;    ///< above 0: `label` (or `labels`) is one number, the row's class
};

/// The rows of JSONL files, in order, each one sample as it stands: `input_ids`, and where given
/// `labels`, `attention_mask`, `token_type_ids`, as long as it. Labels are ids or -100. Throws
/// Error(kFormat) naming file and line, Error(kUsage) when there is not one row.
std::shared_ptr<const Dataset> rows_dataset(const std::vector<std::string>& files,
                                            const RowsOptions& options);

}  // namespace cleave
