#include "cleave/data/chats.h"

#include <algorithm>
#include <span>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/text/jsonl.h"

namespace cleave {
namespace {

class ChatDataset final : public Dataset {
 public:
  explicit ChatDataset(const DatasetOptions& options) : options_(options) {}

  void append(TokenizedChat chat, const std::string& place, ChatCounts& counts) {
    const auto length = static_cast<int64_t>(chat.ids.size());
    counts.conversations += 1;
    counts.tokens += length;
    check_ids(chat.ids, place);
    if (length > options_.seq_len) {
      if (++counts.truncated == 1) counts.first = place;
      counts.truncated_tokens += length - options_.seq_len;
      chat.ids.resize(static_cast<size_t>(options_.seq_len));
      chat.is_trained.resize(chat.ids.size());
    }
    // A model predicts each token from those before it, so the first one is not trained.
    if (std::find(chat.is_trained.begin() + 1, chat.is_trained.end(), true) ==
        chat.is_trained.end()) {
      counts.left_out += 1;
      return;
    }
    for (size_t i = 0; i < chat.ids.size(); ++i) {
      ids_.push_back(static_cast<int32_t>(chat.ids[i]));
      labels_.push_back(chat.is_trained[i] ? ids_.back() : -100);
    }
    starts_.push_back(static_cast<int64_t>(ids_.size()));
  }

  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(starts_.size()) - 1; }
  [[nodiscard]] bool is_text() const override { return true; }

  [[nodiscard]] Sample sample(int64_t index) const override {
    CLEAVE_CHECK(index >= 0 && index < size(), Code::kUsage, "sample ", index, " of ", size());
    const int64_t begin = starts_[static_cast<size_t>(index)];
    const int64_t end = starts_[static_cast<size_t>(index) + 1];
    return {.ids = {ids_.data() + begin, ids_.data() + end},
            .labels = {labels_.data() + begin, labels_.data() + end},
            .attention_mask = {},
            .token_types = {}};
  }

  [[nodiscard]] uint64_t fingerprint() const override {
    Hasher hasher;
    hasher.update(std::as_bytes(std::span(ids_)));
    hasher.update(std::as_bytes(std::span(labels_)));
    hasher.update(std::as_bytes(std::span(starts_)));
    return hasher.digest();
  }

 private:
  void check_ids(const std::vector<int64_t>& ids, const std::string& place) const {
    for (const int64_t id : ids) {
      CLEAVE_CHECK(options_.vocab_size == 0 || id < options_.vocab_size, Code::kFormat, place,
                   ": the tokenizer (", options_.tokenizer->kind(), ") gives id ", id,
                   ", the model's vocabulary has ", options_.vocab_size,
                   "; use the tokenizer of the model");
    }
  }

  DatasetOptions options_;
  std::vector<int32_t> ids_, labels_;  // of all conversations, concatenated
  std::vector<int64_t> starts_{0};     // offset of each conversation in ids_
};

}  // namespace

std::string ChatCounts::warning(int64_t seq_len) const {
  if (truncated == 0) return {};
  const bool is_one = truncated == 1;
  std::string text = str(truncated, " of ", counted(conversations, "conversation"),
                         is_one ? " is" : " are", " longer than --seq-len ", seq_len,
                         is_one ? " and is" : " and are", " truncated: ", truncated_tokens, " of ",
                         tokens, " tokens are not used (the first: ", first, ")");
  if (left_out > 0)
    text += str("; ", left_out, " of them ", left_out == 1 ? "is" : "are",
                " left out, because no trained token is left");
  return text;
}

std::shared_ptr<const Dataset> chat_dataset(const DatasetOptions& options, const ChatOptions& chat,
                                            ChatCounts* counts) {
  CLEAVE_CHECK(options.task == Task::kLm, Code::kUsage, options.files.front(),
               " holds conversations, which only models for task lm learn");
  CLEAVE_CHECK(options.tokenizer != nullptr, Code::kUsage, options.files.front(),
               " holds conversations, which need a tokenizer; the model has none, so give one with "
               "--tokenizer DIR or --tokenizer bytes");
  auto dataset = std::make_shared<ChatDataset>(options);
  ChatReader reader(options.tokenizer, chat);
  for (const std::string& file : options.files) {
    JsonLines rows(file);
    while (const std::optional<Json> row = rows.next()) {
      dataset->append(reader.read(*row, rows.place()), rows.place(), *counts);
    }
  }
  CLEAVE_CHECK(dataset->size() > 0, Code::kUsage, "none of the ", counts->conversations,
               " conversations has a trained token in its first ", options.seq_len,
               " tokens; raise --seq-len");
  return dataset;
}

}  // namespace cleave
