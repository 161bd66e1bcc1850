#include "cleave/tokenizer/batch.h"

#include <algorithm>
#include <utility>

#include "cleave/base/error.h"

namespace cleave {
namespace {

using Ids = std::vector<int64_t>;
using What = TemplateStep::What;

void shorten(Ids& ids, int64_t length) {
  if (length < static_cast<int64_t>(ids.size())) ids.resize(static_cast<size_t>(length));
}

/// Cuts both to `room` ids together: the longer one first, then both to a half.
void cut_longest_first(Ids& first, Ids& second, int64_t room) {
  auto n1 = static_cast<int64_t>(first.size());
  auto n2 = static_cast<int64_t>(second.size());
  const bool swapped = n1 > n2;
  if (swapped) std::swap(n1, n2);
  n2 = n1 > room ? n1 : std::max(n1, room - n1);
  if (n1 + n2 > room) {
    n1 = room / 2;
    n2 = n1 + room % 2;
  }
  if (swapped) std::swap(n1, n2);
  shorten(first, n1);
  shorten(second, n2);
}

void truncate(Ids& first, Ids* second, int64_t room, Truncation truncation) {
  const auto total = static_cast<int64_t>(first.size() + (second != nullptr ? second->size() : 0));
  if (total <= room) return;
  if (truncation == Truncation::kLongestFirst) {
    if (second == nullptr) return shorten(first, room);
    return cut_longest_first(first, *second, room);
  }
  CLEAVE_CHECK(truncation == Truncation::kOnlyFirst || second != nullptr, Code::kUsage,
               "truncation 'only second' needs pairs; the batch has ", total, " ids in one text");
  Ids& target = truncation == Truncation::kOnlyFirst ? first : *second;
  const auto length = static_cast<int64_t>(target.size());
  CLEAVE_CHECK(length > total - room, Code::kShape, "a text of ", length, " ids cannot lose ",
               total - room, "; raise max_length or cut the other text too");
  shorten(target, length - (total - room));
}

void append_row(const std::vector<TemplateStep>& steps, const Ids& first, const Ids& second,
                EncodedBatch& out) {
  Ids ids;
  Ids types;
  for (const TemplateStep& step : steps) {
    if (step.what == What::kToken) {
      ids.push_back(step.id);
    } else {
      const Ids& from = step.what == What::kFirst ? first : second;
      ids.insert(ids.end(), from.begin(), from.end());
    }
    types.resize(ids.size(), step.type_id);
  }
  out.attention_mask.emplace_back(ids.size(), 1);
  out.input_ids.push_back(std::move(ids));
  out.token_type_ids.push_back(std::move(types));
}

void pad_row(Ids& row, size_t length, int64_t value, bool left) {
  if (row.size() < length) row.insert(left ? row.begin() : row.end(), length - row.size(), value);
}

void pad(const Tokenizer& tokenizer, const BatchOptions& options, EncodedBatch& batch) {
  const std::optional<int64_t> own =
      tokenizer.special().pad ? tokenizer.special().pad : tokenizer.special().eos;
  const std::optional<int64_t> id = options.pad_id ? options.pad_id : own;
  CLEAVE_CHECK(id, Code::kUsage, "the ", tokenizer.kind(),
               " tokenizer has no padding token; give a pad_id");
  auto length = static_cast<size_t>(options.max_length);
  if (options.padding == Padding::kLongest) {
    length = 0;
    for (const Ids& row : batch.input_ids) length = std::max(length, row.size());
  }
  for (size_t i = 0; i < batch.input_ids.size(); ++i) {
    pad_row(batch.input_ids[i], length, *id, options.pad_left);
    pad_row(batch.attention_mask[i], length, 0, options.pad_left);
    pad_row(batch.token_type_ids[i], length, 0, options.pad_left);
  }
}

}  // namespace

EncodedBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                          std::span<const std::string> pairs, const BatchOptions& options) {
  CLEAVE_CHECK(pairs.empty() || pairs.size() == texts.size(), Code::kUsage, "there are ",
               texts.size(), " texts and ", pairs.size(), " pairs; expected as many or none");
  const SequenceTemplate none;
  const SequenceTemplate& both = options.add_special ? tokenizer.sequence_template() : none;
  const std::vector<TemplateStep>& steps = pairs.empty() ? both.single : both.pair;
  const auto num_added = std::count_if(steps.begin(), steps.end(), [](const TemplateStep& step) {
    return step.what == What::kToken;
  });
  const bool bounded =
      options.truncation != Truncation::kNone || options.padding == Padding::kMaxLength;
  CLEAVE_CHECK(!bounded || options.max_length >= num_added, Code::kUsage,
               "max_length=", options.max_length, " has no room for the ", num_added,
               " tokens that are added");
  EncodedBatch batch;
  for (size_t i = 0; i < texts.size(); ++i) {
    Ids first = tokenizer.encode(texts[i], {.add_special = false});
    Ids second = pairs.empty() ? Ids{} : tokenizer.encode(pairs[i], {.add_special = false});
    if (options.truncation != Truncation::kNone) {
      truncate(first, pairs.empty() ? nullptr : &second, options.max_length - num_added,
               options.truncation);
    }
    append_row(steps, first, second, batch);
  }
  if (options.padding != Padding::kNone) pad(tokenizer, options, batch);
  return batch;
}

}  // namespace cleave
