#include "cleave/nn/int8_leaf.h"

#include <limits>

#include <ATen/ATen.h>

#include "cleave/kernels/int8_weight.h"
#include "cleave/nn/inference_weight.h"

namespace cleave::inline nn {

Tensor rows_of_flat(const Parameter& parameter, int row_dim) {
  const Range range = parameter.flat_range();
  const int64_t width = parameter.local_shape().at(1);
  const Tensor index = at::arange(range.begin, range.end, at::kLong);
  return row_dim == 0 ? at::div(index, width, "floor") : at::remainder(index, width);
}

void fill_int8(Parameter& parameter, const Tensor& part) {
  const at::NoGradGuard no_grad;
  const int row_dim = parameter.int8_row_dim();
  const int64_t num_rows = parameter.local_shape().at(static_cast<size_t>(row_dim));
  Tensor largest = at::zeros({num_rows}, at::kFloat);
  Tensor rows;
  if (parameter.is_flat()) {
    rows = rows_of_flat(parameter, row_dim);
    largest = largest.scatter_reduce(0, rows, part.to(at::kFloat).abs(), "amax");
  } else if (part.numel() > 0) {  // without a copy of the whole matrix
    largest = at::maximum(part.amax(1 - row_dim), part.amin(1 - row_dim).neg()).to(at::kFloat);
  }
  // Infinity, which a maximum over ranks keeps.
  largest = largest.nan_to_num(std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::infinity());
  const std::string site = parameter.name() + " in int8";
  if (parameter.is_flat()) {
    largest = parameter.data_axis().all_reduce(largest, site, ReduceOp::kMax);
  }
  if (parameter.is_split() && parameter.split_dim() != row_dim) {
    largest = parameter.axis().all_reduce(largest, site, ReduceOp::kMax);
  }
  check_weight_finite(largest, parameter.name(), "int8");
  const Tensor scales = int8_scales(largest);
  const Tensor of_each =
      parameter.is_flat() ? scales.index_select(0, rows) : scales.unsqueeze(1 - row_dim);
  parameter.set_int8(to_int8_values(part, of_each), scales);
}

}  // namespace cleave::inline nn
