#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline data {

/// What the model learns: to predict next tokens, masked tokens, the class of a sequence, which
/// classes it has, or a number for it, or to prefer one answer to another (direct preference
/// optimization).
enum class Task : uint8_t { kLm, kMlm, kClassify, kMultilabel, kRegression, kDpo };

/// The task of a model: "lm", "mlm", "classify", "multilabel" or "regression". Throws Error(kUsage)
/// for any other, such as that of a model without a head.
Task task_from_name(const std::string& name);

/// Whether the task has labels of whole sequences: a class, several classes, or a number.
inline bool labels_sequences(Task task) {
  return task == Task::kClassify || task == Task::kMultilabel || task == Task::kRegression;
}

/// One sequence of training data, or the two of a pair. A vector is empty if the data lacks it,
/// else as long as ids.
struct Sample {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;          ///< -100 = no label; causal models shift them
  std::vector<int64_t> attention_mask;  ///< 1 = real
  std::vector<int64_t> token_types;
  std::vector<int64_t> positions{};  ///< restart at 0 where a text begins; empty: one text
  std::optional<int64_t> label{};    ///< class of the sequence (kClassify); `labels` is empty then
  std::optional<double> score{};     ///< number of the sequence (kRegression); the same
  /// For each class, 1 if the sequence has it, else 0 (kMultilabel); the same.
  std::vector<float> class_targets{};
  /// The rejected sequence of a pair (kDpo), whose chosen one is `ids`; else empty.
  std::vector<int64_t> rejected_ids{}, rejected_labels{};
};

/// The label of a position without one, which no loss counts (`ignore_index` of cross_entropy).
inline constexpr int64_t kNoLabel = -100;

/// The labels of a language model's sequence: those that it has, else its ids where the attention
/// mask does not hide them.
std::vector<int64_t> labels_of(const Sample& sample);

/// Samples by index. Immutable: all rank threads share one object.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual int64_t size() const = 0;
  /// The sample at 0 <= index < size(). Throws Error(kUsage) for another index.
  [[nodiscard]] virtual Sample sample(int64_t index) const = 0;
  /// Whether the ids were tokenized from text, not read as rows of ids.
  [[nodiscard]] virtual bool is_text() const = 0;
  /// Changes when any sample changes. A resumed run compares it.
  [[nodiscard]] virtual uint64_t fingerprint() const = 0;
};

struct DatasetOptions {
  std::vector<std::string> files;              ///< text, JSONL with `text`, or JSONL rows of ids
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null: only rows of ids can be read
  int64_t seq_len = 256;                       ///< tokens per packed sequence
  std::string cache_folder;  ///< of token caches and other files; empty = memory only
  int64_t vocab_size = 0;    ///< of the model: ids must be below it; 0 = unchecked
  Task task = Task::kLm;
  std::vector<std::string> classes{};  ///< class names by index, for kClassify and kMultilabel
};

/// Opens the files. Text is tokenized once (the ids are cached in a file) and packed into sequences
/// of seq_len; each document ends with the tokenizer's end id, if it has one. Each row of ids is
/// one sample, unchanged; for kMlm it must have labels. For kClassify, kMultilabel and kRegression
/// see data/dataset_kinds.h.
/// Throws Error(kIo, kFormat) with file and line; Error(kUsage) if the data has no complete
/// sequence, the files are of different kinds, text has no tokenizer, or kLm or kMlm has a .csv
/// file.
std::shared_ptr<const Dataset> open_dataset(const DatasetOptions& options);

/// Opens text as one sample per document, for packed_samples(). A document of more than seq_len
/// tokens is divided into several samples, of which each begins with the last token of the one
/// before, so that every token but the first is predicted once. A document of one token, which
/// nothing predicts, is left out. Throws as open_dataset().
std::shared_ptr<const Dataset> open_documents(const DatasetOptions& options);

}  // namespace cleave::inline data
