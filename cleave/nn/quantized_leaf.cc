#include "cleave/nn/quantized_leaf.h"

#include <limits>
#include <map>

#include <ATen/ATen.h>

#include "cleave/nn/inference_weight.h"

namespace cleave::inline nn {
namespace {

/// The blocks of inputs in nf4, of which this rank's part has some elements.
struct InputBlocks {
  std::vector<int64_t> held;  ///< their indices in the whole matrix
  int64_t num_whole = 0;      ///< blocks of the whole matrix
  Tensor of_input;            ///< [inputs of this rank] int32, indices of `held`
};

InputBlocks input_blocks(const Parameter& parameter) {
  const int in_dim = 1 - parameter.quantization()->row_dim;
  InputBlocks blocks;
  blocks.num_whole =
      (parameter.shape().at(static_cast<size_t>(in_dim)) + kNf4Block - 1) / kNf4Block;
  std::map<int64_t, int32_t> place;
  std::vector<int32_t> of_input;
  for (const int64_t input : parameter.indices(in_dim)) {
    const auto [found, is_new] =
        place.emplace(input / kNf4Block, static_cast<int32_t>(place.size()));
    if (is_new) blocks.held.push_back(found->first);
    of_input.push_back(found->second);
  }
  blocks.of_input = at::tensor(of_input, at::kInt);
  return blocks;
}

/// The shape of this rank's scales.
std::vector<int64_t> scales_shape(const Parameter& parameter, int64_t num_blocks) {
  std::vector<int64_t> shape = parameter.local_shape();
  shape.at(static_cast<size_t>(1 - parameter.quantization()->row_dim)) = num_blocks;
  return shape;
}

/// Whether tensor-parallel ranks have parts of one row.
bool shards_inputs(const Parameter& parameter) {
  return parameter.is_split() && parameter.split_dim() != parameter.quantization()->row_dim;
}

void fill_int8(Parameter& parameter, const Tensor& part) {
  const int row_dim = parameter.quantization()->row_dim;
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
  if (shards_inputs(parameter)) {
    largest = parameter.axis().all_reduce(largest, site, ReduceOp::kMax);
  }
  check_weight_finite(largest, parameter.name(), "int8");
  const Tensor scales = int8_scales(largest);
  const Tensor of_each =
      parameter.is_flat() ? scales.index_select(0, rows) : scales.unsqueeze(1 - row_dim);
  parameter.set_quantized(to_int8_values(part, of_each), scales.unsqueeze(1 - row_dim));
}

void fill_nf4(Parameter& parameter, const Tensor& part) {
  const int row_dim = parameter.quantization()->row_dim;
  const InputBlocks blocks = input_blocks(parameter);
  const Nf4Elements elements{.elements = part.to(at::kFloat).contiguous(),
                             .begin = parameter.flat_range().begin,
                             .shape = parameter.local_shape(),
                             .row_dim = row_dim,
                             .block_of = blocks.of_input};
  Tensor largest = nf4_largest(elements, std::ssize(blocks.held));
  const std::string site = parameter.name() + " in nf4";
  if (parameter.is_flat()) {
    largest = parameter.data_axis().all_reduce(largest, site, ReduceOp::kMax);
  }
  if (shards_inputs(parameter)) {  // ranks may have parts of the same block
    const Tensor held = at::tensor(blocks.held, at::kLong);
    const Tensor whole = at::zeros(scales_shape(parameter, blocks.num_whole), at::kFloat)
                             .index_copy(1 - row_dim, held, largest);
    largest =
        parameter.axis().all_reduce(whole, site, ReduceOp::kMax).index_select(1 - row_dim, held);
  }
  check_weight_finite(largest, parameter.name(), "nf4");
  parameter.set_quantized(to_nf4_values(elements, largest), largest, blocks.of_input);
}

}  // namespace

Tensor rows_of_flat(const Parameter& parameter, int row_dim) {
  const Range range = parameter.flat_range();
  const int64_t width = parameter.local_shape().at(1);
  const Tensor& leaf = parameter.leaf();
  const Tensor index =
      at::arange(range.begin, range.end,
                 at::dtype(at::kLong).device(leaf.defined() ? leaf.device() : at::kCPU));
  return row_dim == 0 ? at::div(index, width, "floor") : at::remainder(index, width);
}

void fill_quantized(Parameter& parameter, const Tensor& part) {
  const at::NoGradGuard no_grad;
  parameter.is_nf4() ? fill_nf4(parameter, part) : fill_int8(parameter, part);
}

void set_quantized_meta(Parameter& parameter) {
  const auto on_meta = [](const std::vector<int64_t>& shape, at::ScalarType type) {
    return at::empty(shape, at::dtype(type).device(at::kMeta));
  };
  const int64_t num_blocks =
      parameter.is_nf4() ? std::ssize(input_blocks(parameter).held) : int64_t{1};
  parameter.set_quantized(on_meta(parameter.stored_shape(), at::kChar),
                          on_meta(scales_shape(parameter, num_blocks), at::kFloat));
}

Tensor values_of_leaf(const Parameter& parameter, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  if (!parameter.is_flat()) return dequantize(parameter.quantized(), type);
  const int row_dim = parameter.quantization()->row_dim;
  const Tensor leaf = parameter.leaf().detach(), &scales = parameter.scales();
  const Tensor rows = rows_of_flat(parameter, row_dim);
  // Products in fp32, as those of dequantize().
  if (!parameter.is_nf4()) {
    return (leaf.to(at::kFloat) * scales.flatten().index_select(0, rows)).to(type);
  }
  const Tensor inputs = rows_of_flat(parameter, 1 - row_dim);
  const Tensor blocks = parameter.block_of().index_select(0, inputs).to(at::kLong);
  const Tensor of_each = row_dim == 0 ? scales.index({rows, blocks}) : scales.index({blocks, rows});
  return (nf4_numbers(leaf, parameter.flat_range().size()) * of_each).to(type);
}

}  // namespace cleave::inline nn
