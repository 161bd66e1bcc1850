#include "cleave/data/chat_sequences.h"

#include <algorithm>

#include "cleave/base/error.h"
#include "cleave/data/dataset_kinds.h"

namespace cleave::inline data {

void check_ids(const TokenizedChat& chat, const DatasetOptions& options, const std::string& place) {
  for (const int64_t id : chat.ids) check_id(id, options, place);
}

int64_t truncate(TokenizedChat& chat, int64_t seq_len) {
  const int64_t cut = static_cast<int64_t>(chat.ids.size()) - seq_len;
  if (cut <= 0) return 0;
  chat.ids.resize(static_cast<size_t>(seq_len));
  chat.is_trained.resize(chat.ids.size());
  return cut;
}

bool is_trained(const TokenizedChat& chat) {
  const auto& trained = chat.is_trained;
  return !trained.empty() && std::find(trained.begin() + 1, trained.end(), true) != trained.end();
}

void ChatSequences::add(const TokenizedChat& chat) {
  std::vector<int32_t> ids, labels;
  for (size_t i = 0; i < chat.ids.size(); ++i) {
    ids.push_back(static_cast<int32_t>(chat.ids[i]));
    labels.push_back(chat.is_trained[i] ? ids.back() : static_cast<int32_t>(kNoLabel));
  }
  ids_.append(ids);
  labels_.append(labels);
}

void ChatSequences::check_index(int64_t index) const {
  CLEAVE_CHECK(index >= 0 && index < size(), Code::kUsage, "sample ", index,
               " does not exist; there are ", size());
}

void ChatSequences::finish() {
  Hasher hasher;
  ids_.add_numbers_to(hasher);
  labels_.add_numbers_to(hasher);
  ids_.add_starts_to(hasher);
  fingerprint_ = hasher.digest();
}

}  // namespace cleave::inline data
