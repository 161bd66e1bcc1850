#include "cleave/kernels/cpu/wide_product.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "cleave/kernels/cpu/isa.h"

namespace cleave::inline kernels {
namespace {

// A thread multiplies tiles of a and b at a time: enough tiles for many threads, and a tile of b
// whose fp32 copy stays in the L2 or L3 cache.
constexpr int64_t kTileRows = 512, kTileBytes = int64_t{1} << 20;
constexpr int64_t kLeastColumns = 64, kMostColumns = 256;
constexpr int64_t kMostBytes = int64_t{64} << 20;
constexpr int64_t kFloatBytes = 4;

}  // namespace

bool lacks_fast_products(at::ScalarType type) {
#if defined(__x86_64__)
  return (type == at::kBFloat16 && !has_isa(Isa::kAvx512Bf16)) ||
         (type == at::kHalf && !has_isa(Isa::kAvx512Fp16));
#else
  (void)type;
  return false;
#endif
}

void multiply_in_fp32(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                      const Tensor& to, bool adds, const FloatProduct& multiply) {
  const int64_t rows = a.size(0), inner = a.size(1), columns = b.size(0);
  if (to.numel() == 0) return;
  const int64_t bytes = kFloatBytes * std::max<int64_t>(inner, 1);
  const int64_t most_rows = std::max<int64_t>(kMostBytes / bytes, 1);
  const int64_t most_columns = std::clamp(kTileBytes / bytes, kLeastColumns, kMostColumns);
  const int64_t num_blocks = (columns + most_columns - 1) / most_columns;
  if (a.is_meta()) {  // a dry run: the memory
    const int64_t height = std::min(most_rows, rows), width = std::min(most_columns, columns);
    const auto options = a.options().dtype(at::kFloat);
    const Tensor wide = at::empty({height, inner}, options);
    const Tensor block = at::empty({width, inner}, options);
    const Tensor sums = at::empty({std::min(kTileRows, height), width}, options);
    return;
  }
  // The mode is a thread's own. A tensor of inference may not be written outside of it.
  const bool is_inference = c10::InferenceMode::is_enabled();
  for (int64_t row = 0; row < rows; row += most_rows) {
    const int64_t count = std::min(most_rows, rows - row);
    const int64_t num_parts = (count + kTileRows - 1) / kTileRows;
    const Tensor wide = a.narrow(0, row, count).to(at::kFloat);
    const Tensor target = to.narrow(0, row, count);
    at::parallel_for(0, num_blocks * num_parts, 1, [&](int64_t begin, int64_t end) {
      const c10::InferenceMode inference(is_inference);
      const at::NoGradGuard no_grad;
      const Tensor blocks = at::empty({most_columns, inner}, a.options().dtype(at::kFloat));
      Tensor block;
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t first = tile / num_parts * most_columns;
        const int64_t part = tile % num_parts * kTileRows;
        const int64_t width = std::min(most_columns, columns - first);
        const int64_t height = std::min(kTileRows, count - part);
        if (tile == begin || part == 0) {
          block = blocks.narrow(0, 0, width);
          block.copy_(b.narrow(0, first, width));
        }
        Tensor sums = multiply(wide.narrow(0, part, height), block);
        if (bias) sums.add_(bias->narrow(0, first, width));
        Tensor result = target.narrow(0, part, height).narrow(1, first, width);
        if (adds) sums.add_(result);
        result.copy_(sums);
      }
    });
  }
}

}  // namespace cleave::inline kernels
