#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/chat/chat_reader.h"
#include "cleave/data/dataset.h"

namespace cleave {

/// Throws Error(kFormat) naming `place` if an id is not in the model's vocabulary.
void check_ids(const TokenizedChat& chat, const DatasetOptions& options, const std::string& place);

/// Removes what exceeds `seq_len` tokens; returns how many tokens that was.
int64_t truncate(TokenizedChat& chat, int64_t seq_len);

/// Whether a token is trained. A model predicts each token from those before it, so the first one
/// is not trained.
bool is_trained(const TokenizedChat& chat);

/// Tokenized chats in memory, 8 bytes per token.
class ChatSequences {
 public:
  /// Appends a sequence.
  void add(const TokenizedChat& chat);
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(starts_.size()) - 1; }
  /// The ids of a sequence.
  [[nodiscard]] std::vector<int64_t> ids(int64_t index) const { return part(ids_, index); }
  /// Its labels; kNoLabel for tokens that are not trained.
  [[nodiscard]] std::vector<int64_t> labels(int64_t index) const { return part(labels_, index); }
  /// Of all ids and labels.
  [[nodiscard]] uint64_t fingerprint() const;

 private:
  [[nodiscard]] std::vector<int64_t> part(const std::vector<int32_t>& all, int64_t index) const;

  std::vector<int32_t> ids_, labels_;  // of all sequences, concatenated
  std::vector<int64_t> starts_{0};     // offset of each sequence in ids_
};

}  // namespace cleave
