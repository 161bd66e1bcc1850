#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cleave/chat/chat_reader.h"
#include "cleave/data/dataset.h"
#include "cleave/data/number_lists.h"

namespace cleave::inline data {

/// Throws Error(kFormat) naming `place` if an id is not in the model's vocabulary.
void check_ids(const TokenizedChat& chat, const DatasetOptions& options, const std::string& place);

/// Removes what exceeds `seq_len` tokens; returns how many tokens that was.
int64_t truncate(TokenizedChat& chat, int64_t seq_len);

/// Whether a token is trained. A model predicts each token from those before it, so the first one
/// is not trained.
bool is_trained(const TokenizedChat& chat);

/// Tokenized chats, 8 bytes per token: in memory if they are few, else in a file without a name.
class ChatSequences {
 public:
  /// `folder` as in NumberLists.
  explicit ChatSequences(const std::filesystem::path& folder) : ids_(folder), labels_(folder) {}

  /// Appends a sequence.
  void add(const TokenizedChat& chat);
  [[nodiscard]] int64_t size() const { return ids_.size(); }
  /// The ids of a sequence.
  [[nodiscard]] std::vector<int64_t> ids(int64_t index) const { return ids_.list(index); }
  /// Its labels; kNoLabel for tokens that are not trained.
  [[nodiscard]] std::vector<int64_t> labels(int64_t index) const { return labels_.list(index); }
  /// Of all ids and labels, as of the last finish().
  [[nodiscard]] uint64_t fingerprint() const { return fingerprint_; }
  /// Sets the fingerprint: it reads all sequences.
  void finish();

 private:
  NumberLists ids_, labels_;
  uint64_t fingerprint_ = 0;
};

}  // namespace cleave::inline data
