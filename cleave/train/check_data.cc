#include "cleave/train/check_data.h"

#include <algorithm>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/data/dataset.h"
#include "cleave/model/gguf/tokenizer.h"

namespace cleave::inline train {
namespace {

/// Tokens of the longest sequence, to which its batch is padded.
int64_t longest_sequence(const Dataset& data) {
  size_t longest = 0;
  for (int64_t i = 0; i < data.size(); ++i) {
    const Sample sample = data.sample(i);
    longest = std::max({longest, sample.ids.size(), sample.rejected_ids.size()});
  }
  return static_cast<int64_t>(longest);
}

/// Refuses rows of ids that are longer than the model's positions, as `eval` does: rotary positions
/// of type dynamic would change there. Texts are truncated to --seq-len.
void check_sequences(const Dataset& data, const ModelFacts& facts, const char* flag) {
  if (data.is_text()) return;
  const int64_t longest = longest_sequence(data);
  CLEAVE_CHECK(longest <= facts.max_positions, Code::kShape, flag, " has a sequence of ", longest,
               " ids; the model has ", facts.max_positions,
               " positions; shorten such rows, or leave them out");
}

/// Refuses evaluation data that have nothing to predict. The run would fail at its end.
void check_targets(const Dataset& data, Task task) {
  if (data.is_text() || (task != Task::kLm && task != Task::kMlm)) return;
  for (int64_t i = 0; i < data.size(); ++i) {
    const std::vector<int64_t> labels = labels_of(data.sample(i));
    const auto begin = labels.begin() + (task == Task::kLm && !labels.empty() ? 1 : 0);
    if (std::any_of(begin, labels.end(), [](int64_t id) { return id != -100; })) return;
  }
  throw Error(
      Code::kFormat,
      "--eval-data has no target: each label is -100 or the first of its sequence, which no "
      "token predicts; evaluation needs at least one");
}

/// The model's own tokenizer may have more ids, such as Gemma 3's id of images: the data are
/// checked.
void check_vocabulary(const TrainSetup& setup, const ModelFacts& facts) {
  const Tokenizer* tokenizer = setup.tokenizer.get();
  if (tokenizer == nullptr || tokenizer->vocab_size() <= facts.vocab_size) return;
  CLEAVE_CHECK(setup.folder && is_tokenizer_of(*setup.folder, *tokenizer), Code::kShape,
               "the tokenizer has ", tokenizer->vocab_size(),
               " ids, more than the model's vocab_size=", facts.vocab_size,
               "; give the model's tokenizer with --tokenizer, or leave out --tokenizer if the "
               "model's folder has one");
}

}  // namespace

void check_data(const TrainSetup& setup, const ModelFacts& facts) {
  check_sequences(*setup.data, facts, "--data");
  if (setup.eval_data) {
    check_sequences(*setup.eval_data, facts, "--eval-data");
    check_targets(*setup.eval_data, setup.task);
  }
  check_vocabulary(setup, facts);
}

}  // namespace cleave::inline train
