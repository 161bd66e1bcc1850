#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "cleave/chat/chat_template.h"
#include "cleave/data/dataset.h"

namespace cleave {

/// What did not fit into the sequences.
struct PairCounts {
  int64_t pairs = 0, tokens = 0;                ///< read; of both sequences
  int64_t truncated = 0, truncated_tokens = 0;  ///< pairs with a longer sequence, tokens cut off
  int64_t left_out = 0;  ///< pairs whose answers do not differ before the cut, or have no token
  std::string first{};   ///< "FILE:LINE" of the first truncated one

  /// One line about them; empty if all fit.
  [[nodiscard]] std::string warning(int64_t seq_len) const;
};

/// Preferences, one sample per row of the files (chat/pair_reader.h): a chosen and a rejected
/// sequence, each truncated to options.seq_len tokens. Labels are the ids of the answer's tokens,
/// -100 elsewhere. `counts` is added to. Throws Error(kIo, kFormat) with file and line,
/// Error(kUsage) without a tokenizer, or if no sample is left.
std::shared_ptr<const Dataset> pair_dataset(
    const DatasetOptions& options, const std::shared_ptr<const ChatTemplate>& chat_template,
    PairCounts* counts);

}  // namespace cleave
