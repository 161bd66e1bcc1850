#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/chat/chat_reader.h"
#include "cleave/chat/chat_template.h"
#include "cleave/data/dataset.h"
#include "cleave/data/tokens.h"
#include "cleave/text/json.h"

namespace cleave::inline data {

/// Throws Error(kUsage), "FILE NEED a tokenizer; ...", if there is none. `need`: "holds texts,
/// which need".
void require_tokenizer(const DatasetOptions& options, std::string_view need);

/// Throws Error(kFormat) with `place` if the tokenizer gave an id outside the model's vocabulary.
void check_id(int64_t id, const DatasetOptions& options, const std::string& place);

struct RowsOptions {
  int64_t vocab_size = 0;     ///< ids lie in [0, vocab_size); 0: any id below 2^31
  bool needs_labels = false;  ///< a row without `labels` is refused
  int64_t num_classes = 0;    ///< above 0: `label` (or `labels`) is one number, the row's class
  bool has_scores = false;    ///< score_in() is the number that a regression learns of a row
  /// If not empty, the names of the classes; label_set() of label_in() gives those of a row.
  std::vector<std::string> classes{};
  std::string cache_folder{};  ///< for what does not fit into some MiB; empty = memory only
};

/// The rows of JSONL files, in order. Each is one sample, unchanged: `input_ids`, and optionally
/// `labels`, `attention_mask` and `token_type_ids` of the same length. Labels are ids or -100.
/// `position_ids` can only be 0, 1, 2, ... Throws Error(kFormat) with file and line, Error(kUsage)
/// if there are no rows.
std::shared_ptr<const Dataset> rows_dataset(const std::vector<std::string>& files,
                                            const RowsOptions& options);

/// Sequences of seq_len ids from the concatenated parts. Sequence k holds the ids k * seq_len, ...,
/// (k + 1) * seq_len - 1; an incomplete last sequence is dropped. Throws Error(kUsage) if
/// seq_len is not above 0.
std::shared_ptr<const Dataset> packed_dataset(std::vector<Tokens> parts, int64_t seq_len);

/// Whether the files are text, which is joined and divided into sequences of seq_len unless packing
/// keeps documents apart. Chats, rows of ids, preferences and a classifier's texts have their own
/// length. Throws Error(kIo, kFormat) with file and line.
bool joins_text(Task task, const std::vector<std::string>& files);

/// The samples of open_documents().
std::shared_ptr<const Dataset> documents_dataset(std::vector<TokenizedFile> files, int64_t seq_len);

/// A text, or two that a model compares, such as a premise and a hypothesis.
struct Texts {
  std::string first;
  std::optional<std::string> second{};
};

/// The ids of the texts with the special tokens of the tokenizer, truncated to seq_len, and token
/// types if there are two: of these, the longer one is truncated first. Throws Error(kUsage) if
/// seq_len is less than the special tokens.
Sample encode_texts(const Tokenizer& tokenizer, const Texts& texts, int64_t seq_len);

/// Calls `visit` with the texts of each row of a .csv or .jsonl file, in the fields that
/// classified_dataset() reads, else with each non-empty line. Throws Error(kIo, kFormat) with file
/// and line.
void for_each_text(const std::string& path, const std::function<void(const Texts&)>& visit);

/// `label` of a classifier's JSONL row, or its `labels` if `label` is missing or null. Throws
/// Error(kFormat) if the row has neither.
Json label_in(const Json& row);

/// label_in() of a regression's JSONL row, or else its `score`: a number. Throws Error(kFormat).
double score_in(const Json& row);

/// The class names in the labels of the files, sorted. If all labels are numbers: LABEL_0 to the
/// largest. Throws as classified_dataset does, and Error(kFormat) for one class or more than 1000.
std::vector<std::string> class_names(const std::vector<std::string>& files);

/// The class names of rows that have several classes each: as above, from their lists of classes.
/// Those of CSV files with a column per class, in the order of the columns. Throws as
/// classified_dataset does, and Error(kFormat) for more than 1000.
std::vector<std::string> multilabel_names(const std::vector<std::string>& files);

/// Labelled rows for a classifier, for several classes each, or for a regression (options.task). A
/// classifier's label is one of options.classes: a text is its name (or its index, if no class has
/// a number as its name), a number of a JSONL row its index. That of a regression is a number.
///
///   CSV    a header with a text and label or sentiment (files named .csv)
///   JSONL  a text and `label`, or `input_ids` and one whole number, `label` or `labels`
///   regression: the same with a number in label or score
///   multilabel: the same with a label_set() in labels or label; or CSV with a column per class
///
/// A text is in the field text, review, sentence or comment_text. Two texts are in text and
/// text_pair, sentence1 and sentence2, premise and hypothesis, question1 and question2, or question
/// and sentence.
///
/// Texts are tokenized by encode_texts().
/// Rows of ids are used unchanged. Throws Error(kIo, kFormat) with file and line; Error(kUsage) if
/// there are no rows, texts without a tokenizer, or rows of both kinds.
std::shared_ptr<const Dataset> classified_dataset(const DatasetOptions& options);

/// What did not fit into the sequences.
struct ChatCounts {
  int64_t conversations = 0, tokens = 0;
  int64_t truncated = 0, truncated_tokens = 0;  ///< truncated conversations, tokens cut off
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

}  // namespace cleave::inline data
