#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cleave/data/dataset.h"

namespace cleave {

/// Samples from JSONL rows {"input_ids": [..], "labels": [..], "attention_mask": [..],
/// "token_type_ids": [..]}, the last three optional but in all rows or none. Throws Error(kFormat)
/// naming file, line, key and byte.
std::shared_ptr<const Dataset> read_id_rows(const std::vector<std::string>& files,
                                            int64_t vocab_size);

}  // namespace cleave
