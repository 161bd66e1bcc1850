#pragma once
#include <memory>
#include <vector>

#include "cleave/data/dataset.h"
#include "cleave/data/tokens.h"

namespace cleave {

/// Sequences of seq_len ids from the concatenated parts. Sequence k holds the ids k * seq_len, ...,
/// (k + 1) * seq_len - 1; an incomplete last sequence is dropped. Throws Error(kUsage) if
/// seq_len is not above 0.
std::shared_ptr<const Dataset> packed_dataset(std::vector<Tokens> parts, int64_t seq_len);

}  // namespace cleave
