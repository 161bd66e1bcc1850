#pragma once
#include <cstdint>
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

/// Samples of one or more tokenized chats, 8 bytes per token: in memory if they are few, else in a
/// file without a name.
class ChatSequences : public Dataset {
 public:
  explicit ChatSequences(const DatasetOptions& options)
      : options_(options), ids_(options.cache_folder), labels_(options.cache_folder) {}

  [[nodiscard]] bool is_text() const override { return true; }
  /// The fingerprint of all ids and labels at the last finish().
  [[nodiscard]] uint64_t fingerprint() const override { return fingerprint_; }
  /// Sets the fingerprint: it reads all sequences.
  void finish();

 protected:
  [[nodiscard]] const DatasetOptions& options() const { return options_; }
  /// Appends a sequence.
  void add(const TokenizedChat& chat);
  [[nodiscard]] int64_t num_sequences() const { return ids_.size(); }
  /// The ids of a sequence.
  [[nodiscard]] std::vector<int64_t> ids(int64_t sequence) const { return ids_.list(sequence); }
  /// Its labels; kNoLabel for tokens that are not trained.
  [[nodiscard]] std::vector<int64_t> labels(int64_t sequence) const {
    return labels_.list(sequence);
  }
  /// Throws Error(kUsage) unless 0 <= index < size().
  void check_index(int64_t index) const;

 private:
  DatasetOptions options_;
  NumberLists ids_, labels_;
  uint64_t fingerprint_ = 0;
};

}  // namespace cleave::inline data
