#pragma once
#include <memory>
#include <vector>

#include "cleave/data/dataset.h"
#include "cleave/data/tokens.h"

namespace cleave {

/// Rows of seq_len ids cut from the parts put one behind the other: row k holds the ids
/// k * seq_len, ..., (k + 1) * seq_len - 1; what remains at the end is left out. Throws
/// Error(kUsage) when there is not one row.
std::shared_ptr<const Dataset> packed_dataset(std::vector<Tokens> parts, int64_t seq_len);

}  // namespace cleave
