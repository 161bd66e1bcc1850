#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "cleave/chat/chat_reader.h"
#include "cleave/data/dataset.h"

namespace cleave {

/// What did not fit into the sequences.
struct ChatCounts {
  int64_t conversations = 0, tokens = 0;
  int64_t truncated = 0, truncated_tokens = 0;  ///< longer conversations, tokens cut off
  int64_t left_out = 0;  ///< conversations without a trained token before the cut
  std::string first{};   ///< "FILE:LINE" of the first longer one

  /// One line about them; empty if all fit.
  [[nodiscard]] std::string warning(int64_t seq_len) const;
};

/// One sample per conversation, truncated to options.seq_len tokens; a batch pads them. Labels are
/// the ids of trained tokens, -100 elsewhere. `counts` is added to. Throws Error(kIo, kFormat) with
/// file and line, Error(kUsage) for another task than kLm, without a tokenizer, or if no sample is
/// left.
std::shared_ptr<const Dataset> chat_dataset(const DatasetOptions& options, const ChatOptions& chat,
                                            ChatCounts* counts);

}  // namespace cleave
