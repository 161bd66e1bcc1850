#include <algorithm>
#include <span>
#include <string_view>

#include <ATen/ATen.h>

#include "cleave/base/philox.h"
#include "cleave/data/batch.h"

namespace cleave::inline data {
namespace {

/// Random numbers in [0, 1), one per position of a sequence.
struct Draws {
  std::vector<float> choose, kind, word;
};

/// Fills `draws` for one sequence of the global batch from streams of the run's seed.
void draw(const MaskingOptions& options, int64_t step, int64_t global_row, Draws& draws) {
  const auto fill = [&](std::string_view stream, std::vector<float>& out) {
    const uint64_t first = static_cast<uint64_t>(global_row) * out.size();
    fill_uniform(stream_key(options.seed, stream), static_cast<uint64_t>(step), first, out);
  };
  fill("masking: which", draws.choose);
  fill("masking: how", draws.kind);
  fill("masking: word", draws.word);
}

bool is_maskable(int64_t id, int64_t label, const MaskingOptions& options) {
  if (label == kNoLabel || id < 0) return false;
  const auto at = static_cast<size_t>(id);
  return at >= options.is_special.size() || !options.is_special[at];
}

void mask_row(std::span<int64_t> ids, std::span<int64_t> labels, const Draws& draws,
              const MaskingOptions& options) {
  // If no number is below the probability, the token with the smallest one is selected.
  double limit = options.probability;
  float smallest = 2;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (is_maskable(ids[i], labels[i], options)) smallest = std::min(smallest, draws.choose[i]);
  }
  if (smallest >= limit) limit = static_cast<double>(smallest) + 1e-9;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!is_maskable(ids[i], labels[i], options) || draws.choose[i] >= limit) {
      labels[i] = kNoLabel;
      continue;
    }
    labels[i] = ids[i];
    if (draws.kind[i] < 0.8F) {
      ids[i] = options.mask_id;
    } else if (draws.kind[i] < 0.9F) {
      const double at =
          static_cast<double>(draws.word[i]) * static_cast<double>(options.vocab_size);
      ids[i] = static_cast<int64_t>(at);
    }
  }
}

}  // namespace

Batch masked(const Batch& batch, const MaskingOptions& options, int64_t step) {
  Batch out = batch;
  out.ids = batch.ids.clone(at::MemoryFormat::Contiguous);
  out.labels = batch.labels.clone(at::MemoryFormat::Contiguous);
  const int64_t length = out.ids.size(1);
  const auto width = static_cast<size_t>(length);
  Draws draws{.choose = std::vector<float>(width),
              .kind = std::vector<float>(width),
              .word = std::vector<float>(width)};
  for (int64_t row = 0; row < out.ids.size(0); ++row) {
    draw(options, step, batch.first_row + row, draws);
    mask_row({out.ids.mutable_data_ptr<int64_t>() + row * length, width},
             {out.labels.mutable_data_ptr<int64_t>() + row * length, width}, draws, options);
  }
  return out;
}

}  // namespace cleave::inline data
