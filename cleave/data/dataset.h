#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// What rows are for: each next token, masked tokens, or the class of the row.
enum class Task : uint8_t { kLm, kMlm, kClassify };

/// "lm", "mlm" or "classify". Throws Error(kUsage) for another, as for a model without a head.
Task task_from_name(const std::string& name);

/// One row of training data. Vectors are empty where the data says nothing, else as long as ids.
struct Sample {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;          ///< -100 = no label; causal models shift inside
  std::vector<int64_t> attention_mask;  ///< 1 = real
  std::vector<int64_t> token_types;
  std::optional<int64_t> label{};  ///< class of the row, of a classifier's data; then no labels
};

/// Samples by number. Immutable: one object serves all rank threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual int64_t size() const = 0;
  /// The sample of 0 <= index < size(); Error(kUsage) for another.
  [[nodiscard]] virtual Sample sample(int64_t index) const = 0;
  /// Whether ids came from text through the tokenizer; rows of ids did not.
  [[nodiscard]] virtual bool is_text() const = 0;
  /// Changes when any sample changes: a resumed run compares it.
  [[nodiscard]] virtual uint64_t fingerprint() const = 0;
};

struct DatasetOptions {
  std::vector<std::string> files;              ///< text, JSONL with `text`, or JSONL rows of ids
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null: only rows of ids are readable
  int64_t seq_len = 256;                       ///< tokens a packed row has
  std::string cache_folder;                    ///< where token caches go; empty = memory only
  int64_t vocab_size = 0;  ///< of the model; 0 = unchecked; ids outside are Error(kFormat)
  Task task = Task::kLm;
  std::vector<std::string> classes{};  ///< names by number, for classification
};

/// Opens the files, tokenizes text (once: the tokens are kept in a mapped cache) and packs it in
/// rows of seq_len; a document ends with the tokenizer's end id where it has one. Rows of ids are
/// one sample each, unchanged; for masked tokens they must have labels. For classification see
/// data/classified.h. Throws Error(kIo, kFormat) naming file and line; Error(kUsage) when
/// the data has not one row, or files of different kinds are mixed.
std::shared_ptr<const Dataset> open_dataset(const DatasetOptions& options);

}  // namespace cleave
