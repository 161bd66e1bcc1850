#include "cleave/data/pairs.h"

#include <algorithm>
#include <span>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/chat/pair_reader.h"
#include "cleave/text/jsonl.h"

namespace cleave {
namespace {

class PairDataset final : public Dataset {
 public:
  explicit PairDataset(const DatasetOptions& options) : options_(options) {}

  void append(TokenizedPair pair, const std::string& place, PairCounts& counts) {
    counts.pairs += 1;
    int64_t cut = 0;
    for (TokenizedChat* sequence : {&pair.chosen, &pair.rejected}) {
      check_ids(sequence->ids, place);
      const auto length = static_cast<int64_t>(sequence->ids.size());
      counts.tokens += length;
      if (length <= options_.seq_len) continue;
      cut += length - options_.seq_len;
      sequence->ids.resize(static_cast<size_t>(options_.seq_len));
      sequence->is_trained.resize(sequence->ids.size());
    }
    if (cut > 0 && ++counts.truncated == 1) counts.first = place;
    counts.truncated_tokens += cut;
    if (!is_trained(pair.chosen) || !is_trained(pair.rejected) ||
        pair.chosen.ids == pair.rejected.ids) {
      // A short pair is left out only if its answer is one token without a prompt before it.
      CLEAVE_CHECK(cut > 0, Code::kFormat, place,
                   ": the row has no prompt, and an answer of one token, which no token predicts; "
                   "add \"prompt\"");
      counts.left_out += 1;
      return;
    }
    keep(pair.chosen);
    keep(pair.rejected);
  }

  [[nodiscard]] int64_t size() const override {
    return static_cast<int64_t>(starts_.size() - 1) / 2;
  }
  [[nodiscard]] bool is_text() const override { return true; }

  [[nodiscard]] Sample sample(int64_t index) const override {
    CLEAVE_CHECK(index >= 0 && index < size(), Code::kUsage, "sample ", index, " of ", size());
    const auto first = 2 * static_cast<size_t>(index);
    return {.ids = part(ids_, first),
            .labels = part(labels_, first),
            .attention_mask = {},
            .token_types = {},
            .rejected_ids = part(ids_, first + 1),
            .rejected_labels = part(labels_, first + 1)};
  }

  [[nodiscard]] uint64_t fingerprint() const override {
    Hasher hasher;
    hasher.update(std::as_bytes(std::span(ids_)));
    hasher.update(std::as_bytes(std::span(labels_)));
    hasher.update(std::as_bytes(std::span(starts_)));
    return hasher.digest();
  }

 private:
  /// A model predicts each token from those before it, so the first one is not trained.
  static bool is_trained(const TokenizedChat& sequence) {
    const auto& trained = sequence.is_trained;
    return !trained.empty() && std::find(trained.begin() + 1, trained.end(), true) != trained.end();
  }

  void keep(const TokenizedChat& sequence) {
    for (size_t i = 0; i < sequence.ids.size(); ++i) {
      ids_.push_back(static_cast<int32_t>(sequence.ids[i]));
      labels_.push_back(sequence.is_trained[i] ? ids_.back() : -100);
    }
    starts_.push_back(static_cast<int64_t>(ids_.size()));
  }

  [[nodiscard]] std::vector<int64_t> part(const std::vector<int32_t>& all, size_t sequence) const {
    return {all.data() + starts_[sequence], all.data() + starts_[sequence + 1]};
  }

  void check_ids(const std::vector<int64_t>& ids, const std::string& place) const {
    for (const int64_t id : ids) {
      CLEAVE_CHECK(options_.vocab_size == 0 || id < options_.vocab_size, Code::kFormat, place,
                   ": the tokenizer (", options_.tokenizer->kind(), ") gives id ", id,
                   ", the model's vocabulary has ", options_.vocab_size,
                   "; use the tokenizer of the model");
    }
  }

  DatasetOptions options_;
  std::vector<int32_t> ids_, labels_;  // of all sequences: chosen, rejected, chosen, ...
  std::vector<int64_t> starts_{0};     // offset of each sequence in ids_
};

}  // namespace

std::string PairCounts::warning(int64_t seq_len) const {
  if (truncated == 0) return {};
  std::string text = str(truncated, " of ", pairs, " pairs have a sequence longer than --seq-len ",
                         seq_len, " and are truncated: ", truncated_tokens, " of ", tokens,
                         " tokens are not used (the first: ", first, ")");
  if (left_out > 0)
    text += str("; ", left_out, " of them are left out, because no difference is left");
  return text;
}

std::shared_ptr<const Dataset> pair_dataset(
    const DatasetOptions& options, const std::shared_ptr<const ChatTemplate>& chat_template,
    PairCounts* counts) {
  CLEAVE_CHECK(options.tokenizer != nullptr, Code::kUsage, options.files.front(),
               " holds preferences, which need a tokenizer; the model has none, so give one with "
               "--tokenizer DIR or --tokenizer bytes");
  auto dataset = std::make_shared<PairDataset>(options);
  PairReader reader(options.tokenizer, chat_template);
  for (const std::string& file : options.files) {
    JsonLines rows(file);
    while (const std::optional<Json> row = rows.next()) {
      dataset->append(reader.read(*row, rows.place()), rows.place(), *counts);
    }
  }
  CLEAVE_CHECK(counts->pairs > 0, Code::kUsage, options.files.front(),
               " has no rows; expected at least one pair");
  CLEAVE_CHECK(dataset->size() > 0, Code::kUsage, "none of the ", counts->pairs,
               " pairs differs in its first ", options.seq_len, " tokens; raise --seq-len");
  return dataset;
}

}  // namespace cleave
