#include "data.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/base/philox.h"
#include "cleave/data/order.h"
#include "cleave/file/file.h"

namespace bert_pretraining {
namespace {

// The random numbers of one sequence in one epoch.
class Draws {
 public:
  Draws(uint64_t seed, std::string_view purpose, int64_t index, int64_t epoch)
      : key_(cleave::stream_key(seed, purpose)),
        index_(static_cast<uint64_t>(index)),
        epoch_(static_cast<uint64_t>(epoch)) {}
  // The next number, in [0, limit).
  int64_t below(int64_t limit) {
    const uint64_t number = cleave::philox(key_, index_, (epoch_ << 20) + count_++)[0];
    return static_cast<int64_t>((number * static_cast<uint64_t>(limit)) >> 32);
  }

 private:
  uint64_t key_, index_, epoch_, count_ = 0;
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// Undoes WikiText's escapes: "<unk>", and " @-@ " for "-".
std::string plain(std::string line) {
  replace_all(line, "<unk>", "[UNK]");
  for (const char* mark : {"-", ",", "."}) replace_all(line, cleave::str(" @", mark, "@ "), mark);
  return line;
}

// " = Title = ", not " = = Section = = ".
bool is_title(std::string_view line) {
  return line.starts_with(" = ") && !line.starts_with(" = =");
}

Tensor table(const std::vector<std::vector<int64_t>>& rows, int64_t width, int64_t fill) {
  Tensor out = at::full({static_cast<int64_t>(rows.size()), width}, fill, at::kLong);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i].begin(), rows[i].end(),
              out.mutable_data_ptr<int64_t>() + static_cast<int64_t>(i) * width);
  }
  return out;
}

int64_t special(const std::optional<int64_t>& id, const char* name) {
  CLEAVE_CHECK(id.has_value(), cleave::Code::kFormat, "the tokenizer has no ", name,
               " token; use BERT's");
  return *id;
}

}  // namespace

PretrainingDataset::PretrainingDataset(const DatasetOptions& options)
    : options_(options),
      cls_(special(options.tokenizer->special().cls, "[CLS]")),
      sep_(special(options.tokenizer->special().sep, "[SEP]")),
      pad_(special(options.tokenizer->special().pad, "[PAD]")),
      mask_(special(options.tokenizer->special().mask, "[MASK]")) {
  CLEAVE_CHECK(options.seq_len >= 8 && options.max_pred_length >= 1, cleave::Code::kUsage,
               "seq_len=", options.seq_len, ", max_pred_length=", options.max_pred_length,
               "; expected at least 8 and 1");
  const auto documents = read();
  for (size_t d = 0; d < documents.size(); ++d) pair_up(d, documents[d]);
  CLEAVE_CHECK(!pairs_.empty() && pairs_.front().document != pairs_.back().document,
               cleave::Code::kFormat, options.file, ": found ", size(),
               " pairs of segments in one document; the next-sentence task needs at least two "
               "documents (lines \" = Title = \")");
}

std::vector<std::vector<PretrainingDataset::Ids>> PretrainingDataset::read() const {
  const std::string text = cleave::read_file(options_.file);
  std::string_view rest = text;
  std::vector<std::vector<Ids>> documents;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (is_title(line)) {
      if (std::ssize(documents) == options_.max_documents && options_.max_documents > 0) break;
      documents.emplace_back();
    }
    if (documents.empty() || line.starts_with(" =")) continue;
    std::string_view left = line;
    while (!left.empty()) {
      const size_t stop = left.find(" . ");
      const std::string_view sentence = left.substr(0, stop == left.npos ? stop : stop + 3);
      left.remove_prefix(sentence.size());
      Ids ids = options_.tokenizer->encode(plain(std::string(sentence)), {.add_special = false});
      if (!ids.empty()) documents.back().push_back(std::move(ids));
    }
  }
  return documents;
}

// Joins consecutive sentences into segments of at most half a sequence.
void PretrainingDataset::pair_up(size_t document, const std::vector<Ids>& sentences) {
  const auto half = static_cast<size_t>((options_.seq_len - 3) / 2);
  std::vector<Ids> segments;
  for (const Ids& sentence : sentences) {
    if (segments.empty() || segments.back().size() + sentence.size() > half)
      segments.emplace_back();
    Ids& segment = segments.back();
    const size_t space = half - segment.size();
    segment.insert(segment.end(), sentence.begin(),
                   sentence.begin() + static_cast<int64_t>(std::min(space, sentence.size())));
  }
  for (size_t i = 0; i + 1 < segments.size(); i += 2) {
    pairs_.push_back({.document = document, .a = segments[i], .b = segments[i + 1]});
  }
}

// In half of the sequences, at random, segment B is of another document.
PretrainingDataset::Sample PretrainingDataset::sample(int64_t index, int64_t epoch) const {
  const Pair& pair = pairs_[static_cast<size_t>(index)];
  Draws draws(options_.seed, "next sentence", index, epoch);
  const Pair* second = &pair;
  const bool is_other = draws.below(2) == 1;
  while (is_other && second->document == pair.document) {
    second = &pairs_[static_cast<size_t>(draws.below(size()))];
  }
  Sample out;
  out.next = is_other ? 1 : 0;
  out.ids.push_back(cls_);
  out.ids.insert(out.ids.end(), pair.a.begin(), pair.a.end());
  out.ids.push_back(sep_);
  out.types.resize(out.ids.size(), 0);
  out.ids.insert(out.ids.end(), second->b.begin(), second->b.end());
  out.ids.push_back(sep_);
  out.types.resize(out.ids.size(), 1);
  mask_tokens(out, index, epoch);
  return out;
}

// Masks 15 % of the tokens: 80 % of them become [MASK], 10 % a random token, 10 % stay.
void PretrainingDataset::mask_tokens(Sample& out, int64_t index, int64_t epoch) const {
  Draws draws(options_.seed, "masked words", index, epoch);
  Ids positions;
  for (int64_t i = 0; i < std::ssize(out.ids); ++i) {
    const int64_t id = out.ids[static_cast<size_t>(i)];
    if (id != cls_ && id != sep_) positions.push_back(i);
  }
  const auto wanted = std::llround(0.15 * static_cast<double>(positions.size()));
  const int64_t count =
      std::min(std::clamp<int64_t>(wanted, 1, options_.max_pred_length), std::ssize(positions));
  for (int64_t i = 0; i < count; ++i) {
    std::swap(positions[static_cast<size_t>(i)],
              positions[static_cast<size_t>(i + draws.below(std::ssize(positions) - i))]);
    const int64_t position = positions[static_cast<size_t>(i)];
    int64_t& id = out.ids[static_cast<size_t>(position)];
    out.masked_positions.push_back(position);
    out.masked_labels.push_back(id);
    const int64_t draw = draws.below(10);
    if (draw < 8) id = mask_;
    if (draw == 8) id = draws.below(options_.tokenizer->vocab_size());
  }
}

Batch PretrainingDataset::batch(const std::vector<int64_t>& indices, int64_t epoch) const {
  std::vector<Ids> ids, types, real, positions, labels;
  Ids next;
  for (const int64_t index : indices) {
    Sample s = sample(index, epoch);
    real.emplace_back(s.ids.size(), 1);
    ids.push_back(std::move(s.ids));
    types.push_back(std::move(s.types));
    positions.push_back(std::move(s.masked_positions));
    labels.push_back(std::move(s.masked_labels));
    next.push_back(s.next);
  }
  return {.ids = table(ids, options_.seq_len, pad_),
          .token_types = table(types, options_.seq_len, 0),
          .attention_mask = table(real, options_.seq_len, 0).to(at::kBool),
          .masked_positions = table(positions, options_.max_pred_length, 0),
          .masked_labels = table(labels, options_.max_pred_length, -100),
          .next_sentence = at::tensor(next)};
}

int64_t DistributedSampler::num_batches() const {
  return options_.dataset_size / (options_.batch_size * options_.num_replicas);
}

std::vector<int64_t> DistributedSampler::batch(int64_t index) const {
  const cleave::SampleOrder order{.num_samples = options_.dataset_size,
                                  .batch_size = options_.dataset_size,
                                  .shuffle = true,
                                  .seed = options_.seed};
  const int64_t first = (index * options_.num_replicas + options_.rank) * options_.batch_size;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < options_.batch_size; ++i) indices.push_back(order.at(epoch_, first + i));
  return indices;
}

}  // namespace bert_pretraining
