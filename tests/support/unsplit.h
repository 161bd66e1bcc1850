#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "cleave/optim/optimizer.h"
#include "cleave/parallel/gradients.h"
#include "cleave/parallel/plan.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"

namespace cleave::test {

/// Whole tensors by parameter name.
using Weights = std::map<std::string, at::Tensor>;

/// A layer, its plan, and its function as plain tensor functions on whole weights.
struct LayerCase {
  std::function<std::unique_ptr<Layer>()> make;
  Plan plan;
  std::function<at::Tensor(const Weights&, const at::Tensor& x)> reference;
  at::Tensor x;              ///< fp64, or int64 ids
  Context context{};         ///< of the sharded run
  Placement input{};         ///< placement of x at the module boundary: Replicate or Shard
  double tolerance = 1e-12;  ///< fp64 with values of order 1 and sums of less than 100 terms
};

/// Random fp64 values for all parameters of a layer.
inline Weights weights_for(Layer& layer) {
  Weights out;
  layer.name_tree();
  uint64_t seed = 1000;
  for (const auto& p : layer.parameters()) {
    out.emplace(p->name(), 0.4 * numbers(p->shape(), ++seed));
  }
  return out;
}

/// Reference values of a case: output, and gradients of x and all weights for one upstream
/// gradient.
struct Unsplit {
  Weights weights, leaves;
  at::Tensor x, y, upstream;

  explicit Unsplit(const LayerCase& c) : weights(weights_for(*c.make())) {
    for (const auto& [name, w] : weights) leaves.emplace(name, leaf_of(w));
    x = c.x.is_floating_point() ? leaf_of(c.x) : c.x;
    y = c.reference(leaves, x);
    upstream = numbers(y.sizes(), 99);
    (y * upstream).sum().backward();
  }
};

/// Compares output, input gradient, every weight's gradient and every weight after an SGD step on
/// one rank of the sharded layer.
inline void expect_rank_equals(const LayerCase& c, const Unsplit& want, const Axis& axis) {
  const auto where = str(" tp=", axis.size(), " rank=", axis.rank());
  const auto layer = c.make();
  parallelize_module(*layer, axis, c.plan);
  fill(*layer, want.weights, at::kDouble);
  const at::Tensor x = c.x.is_floating_point() ? leaf_of(c.x) : c.x;
  const DTensor y = (*layer)(DTensor::distribute(x, axis, c.input), c.context);
  at::Tensor upstream = want.upstream;
  {
    const at::NoGradGuard no_grad;
    EXPECT_LE(largest_difference(y.full_tensor(), want.y), c.tolerance) << "output" << where;
    if (y.placement().is_shard()) {
      upstream = DTensor::distribute(upstream, axis, y.placement()).local();
    }
  }
  (y.local() * upstream).sum().backward();
  const Parameters parameters = layer->parameters();
  finish_gradients(parameters, axis);
  if (c.x.is_floating_point()) {
    EXPECT_LE(largest_difference(x.grad(), want.x.grad()), c.tolerance) << "input" << where;
  }
  for (const auto& p : parameters) {
    const at::Tensor grad = slice_of(*p, want.leaves.at(p->name()).grad());
    EXPECT_LE(largest_difference(p->leaf().grad(), grad), c.tolerance) << p->name() << where;
  }
  Optimizer(parameters, {.kind = OptimizerOptions::Kind::kSgd}).step(0.5);
  for (const auto& p : parameters) {
    const at::Tensor stepped = want.weights.at(p->name()) - 0.5 * want.leaves.at(p->name()).grad();
    EXPECT_LE(largest_difference(p->leaf(), slice_of(*p, stepped)), c.tolerance)
        << "stepped " << p->name() << where;
  }
}

/// Expects the sharded layer to equal the unsplit one on 1, 2, 3 and 4 ranks.
inline void expect_equals_unsplit(const LayerCase& c) {
  const Unsplit want(c);
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) { expect_rank_equals(c, want, axis); });
  }
}

}  // namespace cleave::test
