#include "cleave/nn/inference_weight.h"

#include <limits>

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/gemm.h"
#include "cleave/kernels/cpu/int4_loops.h"
#include "cleave/kernels/cpu/int8.h"
#include "cleave/kernels/cpu/panels_linear.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline nn {
namespace {

/// Rounding goes through a matrix in chunks, so that its fp32 values need little memory.
constexpr int64_t kChunkWeights = int64_t{1} << 20;

/// The weight as [out, in].
Tensor out_in(const Linear& layer) {
  const Tensor& weight = layer.weight()->use();
  return layer.is_transposed() ? weight.t() : weight;
}

int64_t in_features(const Linear& layer) {
  return layer.weight()->shape()[layer.is_transposed() ? 0 : 1];
}

/// The largest over all ranks' parts.
Tensor largest_of_ranks(const Linear& layer, const Tensor& values) {
  return layer.weight()->axis().all_reduce(values, layer.path(), ReduceOp::kMax);
}

/// Whether a group of 32 inputs is divided among ranks.
bool divides_groups(const Linear& layer) {
  if (!layer.is_row_split()) return false;
  const SplitPtr& split = layer.weight()->placement().split();
  for (int rank = 0; rank < split->num_ranks(); ++rank) {
    for (const Range& range : split->ranges(rank)) {
      const bool ends_inside = range.end % kInt4Group != 0 && range.end != split->whole();
      if (range.begin % kInt4Group != 0 || ends_inside) return true;
    }
  }
  return false;
}

/// The largest values over all ranks' parts of each group. `values` [rows, parts]: those of this
/// rank's parts.
Tensor largest_of_groups(const Linear& layer, const Tensor& values) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int64_t groups = (in_features(layer) + kInt4Group - 1) / kInt4Group;
  Tensor whole = at::full({values.size(0), groups}, -kInfinity, at::kFloat);
  std::vector<int64_t> indices;
  for (const Int4Part& part : int4_parts_of(layer)) {
    Tensor of_group = whole.select(1, part.index);
    // A maximum over ranks keeps infinity, but maybe not NaN.
    const Tensor value = values.select(1, static_cast<int64_t>(indices.size()));
    at::maximum_out(of_group, of_group, value.nan_to_num(kInfinity, kInfinity, -kInfinity));
    indices.push_back(part.index);
  }
  return largest_of_ranks(layer, whole).index_select(1, at::tensor(indices, at::kLong));
}

/// Rounds outputs of a layer's weight, [rows, in], to 4 bits.
Int4Rows rounded_rows(const Linear& layer, const Tensor& rows, bool has_mins) {
  const Tensor groups = in_groups(rows, int4_parts_of(layer));
  Int4Bounds bounds = int4_bounds(groups);
  if (divides_groups(layer)) {
    bounds.high = largest_of_groups(layer, bounds.high);
    bounds.low = largest_of_groups(layer, bounds.low.neg()).neg();
  }
  check_weight_finite(bounds.high, layer.weight()->name(), "int4");
  check_weight_finite(bounds.low, layer.weight()->name(), "int4");
  return cleave::to_int4(groups, bounds, has_mins, layer.weight()->name());
}

}  // namespace

void check_weight_finite(const Tensor& values, const std::string& weight, std::string_view form) {
  CLEAVE_CHECK(values.isfinite().all().item<bool>(), Code::kNumerics, weight,
               " has a NaN or infinity, which ", form,
               " cannot represent; check the file that it was read from");
}

bool to_rows(Linear& layer) {
  if (!layer.is_transposed()) return false;
  layer.set_product([rows = out_in(layer).detach().contiguous()](
                        const Tensor& x, const auto& bias) { return affine(x, rows, bias); });
  return true;
}

bool to_panels(Linear& layer) {
  const Tensor weight = out_in(layer);
  if (!is_on(Kernel::kPanels) || !takes_panels(weight)) return false;
  layer.set_product([panels = cleave::to_panels(weight)](const Tensor& x, const auto& bias) {
    return panels_linear(x, panels, bias);
  });
  return true;
}

bool to_int8(Linear& layer) {
  if (layer.least_bits() > 8) return false;
  const Tensor weight = out_in(layer);
  const bool is_row_split = layer.is_row_split();
  Tensor largest = largest_of_rows(weight);
  if (is_row_split) largest = largest_of_ranks(layer, largest);
  check_weight_finite(largest, layer.weight()->name(), "int8");
  layer.set_product([&layer, is_row_split, matrix = cleave::to_int8(weight, largest)](
                        const Tensor& x, const auto& bias) {
    return int8_linear(x, matrix, bias,
                       is_row_split ? largest_of_ranks(layer, largest_of_rows(x)) : Tensor());
  });
  return true;
}

std::vector<Int4Part> int4_parts_of(const Linear& layer) {
  if (layer.is_row_split()) return int4_parts(layer.weight()->ranges());
  return int4_parts({{0, in_features(layer)}});
}

bool to_int4(Linear& layer, bool has_mins) {
  if (layer.least_bits() > 4) return false;
  const at::NoGradGuard no_grad;
  const Tensor weight = out_in(layer).detach();
  const int64_t count = weight.size(0);
  // The same on every rank, whatever its part of the inputs.
  const int64_t step = std::max<int64_t>(kChunkWeights / in_features(layer), 1);
  std::vector<Tensor> codes, scales, mins;
  int64_t first = 0;
  do {  // once for a part without rows
    const int64_t rows = std::min(step, count - first);
    const Int4Rows rounded = rounded_rows(layer, weight.narrow(0, first, rows), has_mins);
    codes.push_back(rounded.codes);
    scales.push_back(rounded.scales);
    if (has_mins) mins.push_back(rounded.mins);
    first += step;
  } while (first < count);
  set_int4(layer, {.codes = at::cat(codes),
                   .scales = at::cat(scales),
                   .mins = has_mins ? at::cat(mins) : Tensor()});
  return true;
}

void set_int4(Linear& layer, const Int4Rows& rows) {
  layer.set_product(
      [&layer, is_divided = divides_groups(layer), matrix = to_matrix(rows, int4_parts_of(layer))](
          const Tensor& x, const auto& bias) {
        if (!is_divided) return int4_linear(x, matrix, bias);
        const int64_t count = c10::multiply_integers(x.sizes().begin(), x.sizes().end() - 1);
        const Tensor groups = in_groups(x.reshape({count, matrix.in}), matrix.parts);
        return int4_linear(x, matrix, bias, largest_of_groups(layer, groups.abs().amax(2)));
      });
}

}  // namespace cleave::inline nn
