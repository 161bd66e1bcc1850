#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "cleave/base/error.h"
#include "cleave/data/chat_sequences.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/data/reading_progress.h"
#include "cleave/text/jsonl.h"

namespace cleave::inline data {
namespace {

/// A row of a file, and what became of it.
struct ChatRow {
  std::optional<Json> json;
  std::string place;
  TokenizedChat chat{};
  std::exception_ptr error{};
};

/// Rows of a file that are tokenized together, on all threads.
class ChatBatch {
 public:
  explicit ChatBatch(ChatReader& reader) : reader_(reader) {}

  /// Reads rows until they have enough bytes. False at the end of the file.
  bool read(JsonLines& file) {
    rows_.clear();
    const uint64_t begin = file.bytes_read();
    try {
      while (file.bytes_read() - begin < kBatchBytes) {
        std::optional<Json> row = file.next();
        if (!row) break;
        rows_.push_back({.json = std::move(row), .place = file.place()});
      }
    } catch (const Error&) {  // of the rows before it, an error comes first
      rows_.push_back({.json = {}, .place = {}, .error = std::current_exception()});
    }
    return !rows_.empty();
  }
  /// Passes on the rows in order; throws the error of the first row that has one.
  void take(const std::function<void(TokenizedChat, const std::string& place)>& visit) {
    tokenize(rows_.front(), reader_);  // decides which kind of rows the others must be
    at::parallel_for(1, std::ssize(rows_), 1, [&](int64_t begin, int64_t end) {
      ChatReader own = reader_;
      for (int64_t i = begin; i < end; ++i) tokenize(rows_[static_cast<size_t>(i)], own);
    });
    for (ChatRow& row : rows_) {
      if (row.error) std::rethrow_exception(row.error);
      visit(std::move(row.chat), row.place);
    }
  }

 private:
  static constexpr uint64_t kBatchBytes = uint64_t{256} << 10;

  static void tokenize(ChatRow& row, ChatReader& reader) {
    if (!row.json) return;
    try {
      row.chat = reader.read(*row.json, row.place);
    } catch (...) {
      row.error = std::current_exception();
    }
  }

  ChatReader& reader_;
  std::vector<ChatRow> rows_;
};

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
  ChatReader reader(options.tokenizer, chat);
  ReadingProgress progress = common_progress(options.files, "tokenized MiB", options.cache_folder);
  for (const std::string& file : options.files) {
    JsonLines rows(file);
    for (ChatBatch batch(reader); batch.read(rows);) {
      batch.take([&](TokenizedChat chat_ids, const std::string& place) {
        dataset->append(std::move(chat_ids), place, *counts);
      });
      progress.note(rows.bytes_read());
    }
    progress.end_file();
  }
  CLEAVE_CHECK(dataset->size() > 0, Code::kUsage, "no conversation of ", counts->conversations,
               " has a trained token in its first ", options.seq_len, " tokens; raise --seq-len");
  dataset->finish();
  return dataset;
}

}  // namespace cleave::inline data
