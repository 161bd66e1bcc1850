#include "cleave/data/batch.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"

namespace cleave::inline data {
namespace {

/// Copies `values` into row `row` of a [B, T] int64 tensor; the rest of the row stays.
void put_row(at::Tensor& to, int64_t row, const std::vector<int64_t>& values) {
  std::copy(values.begin(), values.end(), to.mutable_data_ptr<int64_t>() + row * to.size(1));
}

/// A sample's sequences: one, or the chosen and the rejected one of a pair.
std::vector<Sample> sequences_of(Sample sample) {
  if (sample.rejected_ids.empty()) return {std::move(sample)};
  Sample rejected{.ids = std::move(sample.rejected_ids),
                  .labels = std::move(sample.rejected_labels),
                  .attention_mask = {},
                  .token_types = {}};
  return {std::move(sample), std::move(rejected)};
}

std::vector<int64_t> positions_of(const Sample& sample) {
  if (!sample.positions.empty()) return sample.positions;
  std::vector<int64_t> positions(sample.ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

enum class LabelKind : uint8_t { kTokens, kClass, kClasses, kScore };

LabelKind kind_of(const Sample& sample) {
  if (sample.score) return LabelKind::kScore;
  if (!sample.class_targets.empty()) return LabelKind::kClasses;
  return sample.label ? LabelKind::kClass : LabelKind::kTokens;
}

std::string_view name_of(LabelKind kind) {
  if (kind == LabelKind::kTokens) return "no class";
  if (kind == LabelKind::kClasses) return "a label for each class";
  return kind == LabelKind::kClass ? "a class" : "a number";
}

/// What determines the shape of a step's batch. The same on every rank.
struct Extent {
  int64_t length = 0;     // tokens of the longest sequence
  bool has_mask = false;  // some position is padding
  bool has_types = false;
  bool has_positions = false;  // some sequence has several texts
  LabelKind labels = LabelKind::kTokens;
  int64_t num_classes = 0;  // of kClasses
  int64_t rows_per_sample = 1;
};

Extent extent_of(const Dataset& dataset, const SampleOrder& order, int64_t step) {
  Extent extent;
  size_t longest = 0;
  size_t shortest = SIZE_MAX;
  for (int64_t place = 0; place < order.batch_size; ++place) {
    const Sample sample = dataset.sample(order.at(step, place));
    longest = std::max({longest, sample.ids.size(), sample.rejected_ids.size()});
    shortest = std::min(shortest, sample.ids.size());
    if (!sample.rejected_ids.empty()) {
      extent.rows_per_sample = 2;
      shortest = std::min(shortest, sample.rejected_ids.size());
    }
    extent.has_types = extent.has_types || !sample.token_types.empty();
    extent.has_positions = extent.has_positions || !sample.positions.empty();
    const LabelKind kind = kind_of(sample);
    CLEAVE_CHECK(place == 0 || kind == extent.labels, Code::kFormat, "sequence ",
                 order.at(step, place), " has ", name_of(kind),
                 ", other sequences of its batch have ", name_of(extent.labels),
                 "; give all sequences a class, or none");
    extent.labels = kind;
    const int64_t num_classes = std::ssize(sample.class_targets);
    CLEAVE_CHECK(place == 0 || num_classes == extent.num_classes, Code::kFormat, "sequence ",
                 order.at(step, place), " has labels of ", num_classes,
                 " classes, other sequences of its batch of ", extent.num_classes);
    extent.num_classes = num_classes;
    extent.has_mask = extent.has_mask ||
                      std::count(sample.attention_mask.begin(), sample.attention_mask.end(), 0) > 0;
  }
  extent.length = static_cast<int64_t>(longest);
  extent.has_mask = extent.has_mask || shortest < longest;
  return extent;
}

/// Labels of `rows` sequences: token labels are -100, others are to be set.
at::Tensor make_labels(const Extent& extent, int64_t rows) {
  if (extent.labels == LabelKind::kTokens)
    return at::full({rows, extent.length}, kNoLabel, at::kLong);
  if (extent.labels == LabelKind::kClasses)
    return at::empty({rows, extent.num_classes}, at::kFloat);
  return at::empty({rows}, extent.labels == LabelKind::kClass ? at::kLong : at::kDouble);
}

void put_label(at::Tensor& labels, int64_t row, const Sample& sequence) {
  if (sequence.score) {
    labels.mutable_data_ptr<double>()[row] = *sequence.score;
  } else if (!sequence.class_targets.empty()) {
    std::copy(sequence.class_targets.begin(), sequence.class_targets.end(),
              labels.mutable_data_ptr<float>() + row * labels.size(1));
  } else if (sequence.label) {
    labels.mutable_data_ptr<int64_t>()[row] = *sequence.label;
  } else {
    put_row(labels, row, labels_of(sequence));
  }
}

uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  return hash_bytes(
      {static_cast<const std::byte*>(whole.const_data_ptr()), static_cast<size_t>(whole.nbytes())});
}

}  // namespace

Batch Batch::rows(int64_t begin, int64_t end) const {
  const auto part = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, begin, end - begin) : tensor;
  };
  return {.ids = part(ids),
          .labels = part(labels),
          .attention_mask = part(attention_mask),
          .token_types = part(token_types),
          .positions = part(positions),
          .first_row = first_row + begin,
          .rows_per_sample = rows_per_sample,
          .reference = part(reference)};
}

Batch Batch::to(at::Device device) const {
  const auto moved = [&](const at::Tensor& tensor) {
    // The memory is pageable, so it is copied before the call returns and may then be freed.
    return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
  };
  return {.ids = moved(ids),
          .labels = moved(labels),
          .attention_mask = moved(attention_mask),
          .token_types = moved(token_types),
          .positions = positions,
          .first_row = first_row,
          .rows_per_sample = rows_per_sample,
          .reference = moved(reference)};
}

int64_t Batch::hash() const {
  const std::array<uint64_t, 4> parts{hash_of(ids), hash_of(labels),
                                      static_cast<uint64_t>(ids.size(0)),
                                      static_cast<uint64_t>(ids.size(1))};
  return static_cast<int64_t>(hash_bytes(std::as_bytes(std::span(parts))));
}

Batch make_batch(const Dataset& dataset, const SampleOrder& order, int64_t step, int64_t begin,
                 int64_t end, int64_t pad_id) {
  CLEAVE_CHECK(begin >= 0 && begin <= end && end <= order.batch_size, Code::kUsage, "samples [",
               begin, ", ", end, ") of a batch of ", order.batch_size,
               "; expected a range inside it");
  const Extent extent = extent_of(dataset, order, step);
  const int64_t num_rows = (end - begin) * extent.rows_per_sample;
  const std::vector<int64_t> shape{num_rows, extent.length};
  Batch batch;
  batch.first_row = begin * extent.rows_per_sample;
  batch.rows_per_sample = extent.rows_per_sample;
  batch.ids = at::full(shape, pad_id, at::kLong);
  batch.labels = make_labels(extent, num_rows);
  at::Tensor mask = at::zeros(shape, at::kLong);
  if (extent.has_types) batch.token_types = at::zeros(shape, at::kLong);
  if (extent.has_positions) batch.positions = at::zeros(shape, at::kLong);
  int64_t row = 0;
  for (int64_t place = begin; place < end; ++place) {
    for (const Sample& sequence : sequences_of(dataset.sample(order.at(step, place)))) {
      put_row(batch.ids, row, sequence.ids);
      put_label(batch.labels, row, sequence);
      put_row(mask, row,
              sequence.attention_mask.empty() ? std::vector<int64_t>(sequence.ids.size(), 1)
                                              : sequence.attention_mask);
      if (extent.has_types) put_row(batch.token_types, row, sequence.token_types);
      if (extent.has_positions) put_row(batch.positions, row, positions_of(sequence));
      ++row;
    }
  }
  if (extent.has_mask) batch.attention_mask = mask.to(at::kBool);
  return batch;
}

}  // namespace cleave::inline data
