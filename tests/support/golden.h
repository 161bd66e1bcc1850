#pragma once
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/nn/layer.h"

namespace cleave::test {

/// Tensors by name.
using Tensors = std::map<std::string, at::Tensor>;

/// All tensors of a safetensors file or folder, by name.
Tensors read_tensors(const std::string& path);

/// Fills a model's parameters with their slices of whole tensors, converted to `dtype`.
void fill(Layer& model, const Tensors& whole, at::ScalarType dtype);

/// This rank's slice of a whole tensor with the layout of `parameter`.
at::Tensor slice_of(const Parameter& parameter, const at::Tensor& whole);

/// Largest absolute difference; 0 for empty tensors. Shapes must agree.
double largest_difference(const at::Tensor& a, const at::Tensor& b);

/// fp32 tensor offset + scale * (u - 1/2), u from fill_uniform with the stream `name`:
/// bit-identical to tests/golden/counter.py.
at::Tensor golden_values(uint64_t seed, const std::string& name, const std::vector<int64_t>& shape,
                         float scale, float offset);

/// The folder of a golden model of tests/golden/models: config.json and the weights. Created on
/// first use in a process and removed at its end.
std::string golden_folder(const std::string& name);

/// transformers' results for a golden model: see tests/golden/README.md. Integers are int64.
/// A vector of all parameters (grad, pad.grad, padid.grad, RUN.step3) is split into grad.NAME for
/// vectors, and grad.NAME.rows [R, 1] and grad.NAME.columns [1, C] for the projections of matrices.
Tensors golden_answers(const std::string& name);

/// Recorded losses and gradients of cross entropy by torch (tests/golden/make_cross_entropy.py),
/// with NAME.logits for each NAME.
Tensors golden_cross_entropy();

/// The fp64 vector [count] onto which rows of `count` numbers are projected; the same as
/// directions() in tests/golden/counter.py.
at::Tensor golden_directions(int64_t count);

/// Largest absolute difference between `slice`, this rank's slice of a parameter or its gradient,
/// and the answer "PREFIX.NAME". A matrix is compared by its projection on golden_directions along
/// the dim that is not sharded, and also along the other dim if the slice is whole.
double golden_difference(const Tensors& golden, const std::string& prefix,
                         const Parameter& parameter, const at::Tensor& slice);

/// $CLEAVE_DATA, or "" if it is not set.
std::string data_folder();

}  // namespace cleave::test

/// Skips the running test if the data of real models is absent. The suites of such tests begin with
/// Real, which gives them the label "real".
#define CLEAVE_NEEDS_DATA()                                                                   \
  if (cleave::test::data_folder().empty()) {                                                  \
    GTEST_SKIP() << "CLEAVE_DATA is not set: it names the folder with real models and texts"; \
  }
