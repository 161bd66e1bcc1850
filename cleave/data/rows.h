#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/data/dataset.h"

namespace cleave {

/// The rows of JSONL files, in order, each one sample as it stands: `input_ids`, and where given
/// `labels`, `attention_mask`, `token_type_ids`, as long as it. Ids lie in [0, vocab_size) (0: any
/// that fits 31 bits), labels there or are -100. Throws Error(kFormat) naming file and line,
/// Error(kUsage) when there is not one row.
std::shared_ptr<const Dataset> rows_dataset(const std::vector<std::string>& files,
                                            int64_t vocab_size);

}  // namespace cleave
