#include "cleave/nn/relative_bias.h"

#include <cmath>

#include <ATen/ATen.h>

#include "cleave/base/error.h"

namespace cleave::inline nn {
namespace {

/// Number of buckets for one direction, and how many of them hold a single distance.
struct Buckets {
  int64_t all, exact;
};

Buckets buckets_of(const RelativeBiasOptions& o, bool causal) {
  const int64_t all = causal ? o.num_buckets : o.num_buckets / 2;
  return {.all = all, .exact = all / 2};
}

}  // namespace

void check_relative_bias(const RelativeBiasOptions& o, bool causal) {
  const int64_t least = causal ? 2 : 4;
  CLEAVE_CHECK(o.num_buckets >= least && (causal || o.num_buckets % 2 == 0), Code::kShape,
               "relative bias: num_buckets=", o.num_buckets, "; expected ",
               causal ? "at least 2" : "a multiple of 2, at least 4, without a causal mask");
  const int64_t exact = buckets_of(o, causal).exact;
  CLEAVE_CHECK(o.max_distance > exact, Code::kShape, "relative bias: max_distance=", o.max_distance,
               " with num_buckets=", o.num_buckets, "; expected more than ", exact);
}

Tensor relative_buckets(const RelativeBiasOptions& options, bool causal, const Range& queries,
                        int64_t num_keys, at::Device device) {
  const auto [all, exact] = buckets_of(options, causal);
  const auto ints = at::dtype(at::kLong).device(device);
  const Tensor query = at::arange(queries.begin, queries.end, ints).unsqueeze(-1);
  const Tensor ahead = at::arange(num_keys, ints) - query;  // [T, S]: by how much the key is later
  const Tensor distance = causal ? ahead.clamp_max(0).neg() : ahead.abs();
  // In fp32, and in the order of transformers, because the result is rounded down.
  const Tensor ratio = distance.clamp_min(1).to(at::kFloat) / static_cast<double>(exact);
  const double log_range =
      std::log(static_cast<double>(options.max_distance) / static_cast<double>(exact));
  const Tensor wide =
      (ratio.log() / log_range * static_cast<double>(all - exact)).to(at::kLong) + exact;
  const Tensor bucket = at::where(distance < exact, distance, wide.clamp_max(all - 1));
  return causal ? bucket : bucket + ahead.gt(0).to(at::kLong) * all;
}

Tensor relative_bias(const Tensor& table, const RelativeBiasOptions& options, bool causal,
                     const Range& queries, int64_t num_keys) {
  const Tensor wide = table.scalar_type() == at::kDouble ? table : table.to(at::kFloat);
  const Tensor buckets = relative_buckets(options, causal, queries, num_keys, table.device());
  return at::embedding(wide, buckets).permute({2, 0, 1}).unsqueeze(0);
}

}  // namespace cleave::inline nn
