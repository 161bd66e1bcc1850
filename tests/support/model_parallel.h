#pragma once
#include <functional>

#include "cleave/compat/nxd.h"
#include "tests/support/ranks.h"

namespace cleave::test {

/// Runs `body` on pp x dp x tp rank threads between initialize_model_parallel and its end.
inline void on_groups(int pp, int dp, int tp, const std::function<void()>& body) {
  on_world(pp * dp * tp, [&](World& world) {
    nxd::initialize_model_parallel(
        world, {.tensor_model_parallel_size = tp, .pipeline_model_parallel_size = pp});
    body();
    nxd::destroy_model_parallel();
  });
}

/// on_groups() without a pipeline.
inline void on_model_parallel(int tp, int dp, const std::function<void()>& body) {
  on_groups(1, dp, tp, body);
}

/// This rank's shard of `whole`; `sizes` are the ranks' sizes of dim `dim`.
inline at::Tensor piece(const at::Tensor& whole, int64_t dim, const std::vector<int64_t>& sizes) {
  const int rank = nxd::get_tensor_model_parallel_rank();
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += sizes[static_cast<size_t>(r)];
  return whole.narrow(dim, begin, sizes[static_cast<size_t>(rank)]).contiguous();
}

/// Near-equal sizes, larger ones first.
inline std::vector<int64_t> even_sizes(int64_t whole) {
  return Split::balanced(whole, nxd::get_tensor_model_parallel_size())->widths();
}

}  // namespace cleave::test
