#include <utility>

#include "cleave/base/error.h"
#include "cleave/data/chat_sequences.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/data/tokenized_rows.h"

namespace cleave::inline data {
namespace {

class ChatDataset final : public ChatSequences {
 public:
  using ChatSequences::ChatSequences;

  void append(TokenizedChat chat, const std::string& place, ChatCounts& counts) {
    counts.conversations += 1;
    counts.tokens += static_cast<int64_t>(chat.ids.size());
    check_ids(chat, options(), place);
    const int64_t cut = truncate(chat, options().seq_len);
    if (cut > 0 && ++counts.truncated == 1) counts.first = place;
    counts.truncated_tokens += cut;
    if (!is_trained(chat)) {
      counts.left_out += 1;
      return;
    }
    add(chat);
  }

  [[nodiscard]] int64_t size() const override { return num_sequences(); }

  [[nodiscard]] Sample sample(int64_t index) const override {
    check_index(index);
    return {.ids = ids(index), .labels = labels(index), .attention_mask = {}, .token_types = {}};
  }
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
                " left out, because the truncation removed all of its trained tokens");
  return text;
}

std::shared_ptr<const Dataset> chat_dataset(const DatasetOptions& options, const ChatOptions& chat,
                                            ChatCounts* counts) {
  CLEAVE_CHECK(options.task == Task::kLm, Code::kUsage, options.files.front(),
               " holds conversations, which only task lm can learn");
  require_tokenizer(options, "holds conversations, which need");
  auto dataset = std::make_shared<ChatDataset>(options);
  const RowSource source{.open = [](const std::string& file) { return JsonLines(file); },
                         .read =
                             [reader = ChatReader(options.tokenizer, chat)](
                                 const Json& row, const std::string& place) mutable {
                               return RowSequences{reader.read(row, place)};
                             },
                         .settings = {chat.chat_template ? chat.chat_template->fingerprint() : 0,
                                      chat.train_on_all ? uint64_t{1} : 0}};
  for_each_row(options, source, [&](RowSequences row, const std::string& place) {
    dataset->append(std::move(row.front()), place, *counts);
  });
  CLEAVE_CHECK(dataset->size() > 0, Code::kUsage, "no conversation of ", counts->conversations,
               " has a trained token in its first ", options.seq_len, " tokens; raise --seq-len");
  dataset->finish();
  return dataset;
}

}  // namespace cleave::inline data
