#include <utility>

#include "cleave/base/error.h"
#include "cleave/chat/pair_reader.h"
#include "cleave/data/chat_sequences.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/data/documents.h"
#include "cleave/data/tokenized_rows.h"

namespace cleave::inline data {
namespace {

/// Their sequences are chosen, rejected, chosen, ...
class PairDataset final : public ChatSequences {
 public:
  using ChatSequences::ChatSequences;

  void append(TokenizedPair pair, const std::string& place, PairCounts& counts) {
    counts.pairs += 1;
    int64_t cut = 0;
    for (TokenizedChat* sequence : {&pair.chosen, &pair.rejected}) {
      check_ids(*sequence, options(), place);
      counts.tokens += static_cast<int64_t>(sequence->ids.size());
      cut += truncate(*sequence, options().seq_len);
    }
    if (cut > 0 && ++counts.truncated == 1) counts.first = place;
    counts.truncated_tokens += cut;
    if (!is_trained(pair.chosen) || !is_trained(pair.rejected) ||
        pair.chosen.ids == pair.rejected.ids) {
      // A short pair is left out only if its answer is one token without a prompt before it.
      CLEAVE_CHECK(
          cut > 0, Code::kFormat, place,
          ": the row has no prompt, and one of its answers is a single token, which needs a "
          "token before it; add \"prompt\"");
      counts.left_out += 1;
      return;
    }
    add(pair.chosen);
    add(pair.rejected);
  }

  [[nodiscard]] int64_t size() const override { return num_sequences() / 2; }

  [[nodiscard]] Sample sample(int64_t index) const override {
    check_index(index);
    return {.ids = ids(2 * index),
            .labels = labels(2 * index),
            .attention_mask = {},
            .token_types = {},
            .rejected_ids = ids(2 * index + 1),
            .rejected_labels = labels(2 * index + 1)};
  }
};

}  // namespace

std::string PairCounts::warning(int64_t seq_len) const {
  if (truncated == 0) return {};
  const bool is_one = truncated == 1;
  std::string text =
      str(truncated, " of ", counted(pairs, "pair"), is_one ? " has" : " have",
          " a sequence longer than --seq-len ", seq_len, is_one ? " and is" : " and are",
          " truncated: ", truncated_tokens, " of ", counted(tokens, "token"),
          truncated_tokens == 1 ? " is" : " are", " not used (the first: ", first, ")");
  if (left_out > 0)
    text += str("; ", left_out, " of them ", left_out == 1 ? "is" : "are",
                " left out, because the truncated sequences are identical");
  return text;
}

std::shared_ptr<const Dataset> pair_dataset(
    const DatasetOptions& options, const std::shared_ptr<const ChatTemplate>& chat_template,
    PairCounts* counts) {
  require_tokenizer(options, "holds preferences, which need");
  auto dataset = std::make_shared<PairDataset>(options);
  const RowSource source{
      .open = open_pairs,
      .read =
          [reader = PairReader(options.tokenizer, chat_template)](
              const Json& row, const std::string& place) mutable {
            TokenizedPair pair = reader.read(row, place);
            return RowSequences{std::move(pair.chosen), std::move(pair.rejected)};
          },
      .sequences = 2,
      .settings = {chat_template ? chat_template->fingerprint() : 0}};
  for_each_row(options, source, [&](RowSequences row, const std::string& place) {
    dataset->append({.chosen = std::move(row[0]), .rejected = std::move(row[1])}, place, *counts);
  });
  CLEAVE_CHECK(counts->pairs > 0, Code::kUsage, "the data in ", names_of(options.files), " has ",
               counts->pairs, " rows; expected at least one pair");
  CLEAVE_CHECK(dataset->size() > 0, Code::kUsage, "no pair of ", counts->pairs,
               " differs in its first ", options.seq_len, " tokens; raise --seq-len");
  dataset->finish();
  return dataset;
}

}  // namespace cleave::inline data
