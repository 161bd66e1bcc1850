#include "cleave/nn/parameter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/philox.h"
#include "cleave/nn/layer.h"
#include "cleave/nn/linear.h"
#include "cleave/nn/quantized_leaf.h"
#include "cleave/parallel/plan.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::parameter_test {
namespace {

using test::on_ranks;
using test::thrown_by;

/// Element i is standard deviation times number i of the stream of (seed, name).
Tensor whole_start(uint64_t seed, const std::string& name, at::IntArrayRef shape,
                   double deviation) {
  std::vector<double> z(static_cast<size_t>(c10::multiply_integers(shape)));
  fill_normal(stream_key(seed, name), 0, z);
  return at::tensor(z, at::kDouble).view(shape).mul(deviation);
}

TEST(InitialValue, OnEveryShard_IsTheSameBits) {
  const std::vector<int64_t> shape{7, 6};
  const Tensor want = whole_start(3, "block.weight", shape, 0.05);
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      const SplitPtr pieces = Split::intern(6, [&] {  // two ranges on rank 0, the rest on the last
        std::vector<std::vector<Range>> r(static_cast<size_t>(tp));
        r.front() = {{0, 1}, {4, 6}};
        r.back().insert(r.back().begin() + (tp == 1 ? 1 : 0), {1, 4});
        return r;
      }());
      const SplitPtr everywhere =
          Split::intern(7, std::vector<std::vector<Range>>(static_cast<size_t>(tp), {{0, 7}}));
      for (const auto& [dim, split] :
           std::vector<std::pair<int, SplitPtr>>{{0, Split::balanced(7, tp)},
                                                 {1, Split::balanced(6, tp)},
                                                 {1, pieces},
                                                 {0, everywhere}}) {
        Parameter p(shape, Init::normal(0.05));
        p.set_name("block.weight");
        p.shard(axis, dim, split);
        for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
          EXPECT_TRUE(at::equal(p.initial_value(3, type), test::slice_of(p, want.to(type))))
              << "tp=" << tp << " dim=" << dim;
        }
      }
      Parameter whole(shape, Init::normal(0.05));
      whole.set_name("block.weight");
      whole.replicate(axis);
      EXPECT_TRUE(at::equal(whole.initial_value(3, at::kDouble), want));
    });
  }
}

// So many that threads share them.
TEST(InitialValue, OfALargeMatrix_IsTheSameBitsOnEveryShard) {
  const std::vector<int64_t> shape{300, 131};
  const Tensor want = whole_start(3, "block.weight", shape, 0.05);
  for (const int tp : {1, 2, 3}) {
    on_ranks(tp, [&](const Axis& axis) {
      for (const int dim : {0, 1}) {
        Parameter p(shape, Init::normal(0.05));
        p.set_name("block.weight");
        p.shard(axis, dim, Split::balanced(dim == 0 ? 300 : 131, tp));
        EXPECT_TRUE(at::equal(p.initial_value(3, at::kDouble), test::slice_of(p, want)));
      }
    });
  }
}

// Oracle: numbers of the stream itself.
TEST(InitialValue, OfUniformNumbers_IsTheSameBitsOnEveryShardAndWithinItsBound) {
  std::vector<float> u(42);
  fill_uniform(stream_key(3, "block.weight"), 0, 0, u);
  const Tensor want = at::tensor(u).to(at::kDouble).mul(2).sub(1).mul(0.25).view({7, 6});
  EXPECT_LT(want.abs().max().item<double>(), 0.25);
  EXPECT_LT(want.min().item<double>(), -0.2);  // fails by chance with probability 1e-2
  EXPECT_GT(want.max().item<double>(), 0.2);
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      for (const int dim : {0, 1}) {
        Parameter p({7, 6}, Init::uniform(0.25));
        p.set_name("block.weight");
        p.shard(axis, dim, Split::balanced(dim == 0 ? 7 : 6, tp));
        EXPECT_TRUE(at::equal(p.initial_value(3, at::kDouble), test::slice_of(p, want)));
      }
    });
  }
}

TEST(InitialValue, OtherSeedOrName_GivesOtherValues) {
  Parameter p({50, 50}, Init::normal(2));
  p.set_name("a");
  const Tensor a = p.initial_value(1, at::kDouble);
  // 2,500 normal numbers of deviation 2: the mean within 5 deviations of 2 / 50.
  EXPECT_NEAR(a.mean().item<double>(), 0, 5 * 2 / 50.0);
  EXPECT_NEAR(a.std().item<double>(), 2, 5 * 2 / std::sqrt(2 * 2500.0));
  EXPECT_FALSE(at::equal(a, p.initial_value(2, at::kDouble)));
  p.set_name("b");
  EXPECT_FALSE(at::equal(a, p.initial_value(1, at::kDouble)));
  Parameter ones({3}, Init::constant(1));
  EXPECT_TRUE(at::equal(ones.initial_value(1, at::kFloat), at::ones({3})));
}

TEST(Materialize, SplitLayer_EqualsTheWholeOneAndKeepsExistingValues) {
  Linear whole({.in_features = 5, .out_features = 7});
  materialize(whole, {.seed = 8});
  for (const int tp : {2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      for (const bool rows : {false, true}) {
        Linear split({.in_features = 5, .out_features = 7});
        parallelize_module(split, axis, {{"", rows ? Style(Rowwise{}) : Style(Colwise{})}});
        const Tensor given = at::full(split.bias()->local_shape(), 4.0);
        split.bias()->set_leaf(given);
        materialize(split, {.seed = 8});
        EXPECT_TRUE(at::equal(split.weight()->leaf(),
                              test::slice_of(*split.weight(), whole.weight()->leaf())));
        EXPECT_TRUE(at::equal(split.bias()->leaf(), given));
        EXPECT_TRUE(split.weight()->leaf().requires_grad());
      }
    });
  }
}

TEST(Parameter, RangesAndOwned_AreWhatARankHoldsAndWrites) {
  on_ranks(3, [](const Axis& axis) {
    Parameter sharded({7, 2}, Init::normal(1));
    sharded.shard(axis, 0, Split::balanced(7, 3));
    const int64_t width = axis.rank() == 0 ? 3 : 2;
    EXPECT_EQ(sharded.local_shape(), (std::vector<int64_t>{width, 2}));
    EXPECT_EQ(sharded.ranges(), sharded.owned());
    EXPECT_EQ(sharded.numel(), 14);
    EXPECT_FALSE(sharded.gradient_is_partial());

    Parameter whole({7, 2}, Init::normal(1));
    whole.replicate(axis);
    EXPECT_EQ(whole.ranges(), (std::vector<Range>{{0, 7}}));
    EXPECT_EQ(whole.owned().size(), axis.rank() == 0 ? 1U : 0U);

    Parameter shared({4}, Init::normal(1));
    shared.shard(axis, 0, Split::intern(4, {{{0, 2}}, {{0, 2}}, {{2, 4}}}));
    EXPECT_TRUE(shared.gradient_is_partial());
    EXPECT_EQ(shared.owned().empty(), axis.rank() == 1);
  });
}

TEST(Parameter, ContradictorySplits_AreRefused) {
  on_ranks(2, [](const Axis& axis) {
    Parameter p({6, 4}, Init::normal(1));
    p.set_name("head.weight");
    p.shard(axis, 0, Split::balanced(6, 2));
    EXPECT_NO_THROW(p.shard(axis, 0, Split::balanced(6, 2)));  // tied: both entries agree
    const Error other = thrown_by([&] { p.shard(axis, 1, Split::balanced(4, 2)); });
    EXPECT_EQ(other.code(), Code::kShape);
    EXPECT_TRUE(std::string(other.what()).starts_with("head.weight: two entries")) << other.what();

    Parameter wrong({6, 4}, Init::normal(1));
    EXPECT_EQ(thrown_by([&] { wrong.shard(axis, 0, Split::balanced(4, 2)); }).code(), Code::kShape);
    EXPECT_EQ(thrown_by([&] { wrong.shard(axis, 0, Split::balanced(6, 3)); }).code(), Code::kShape);

    const Error shape = thrown_by([&] { p.set_leaf(at::zeros({6, 4})); });
    EXPECT_EQ(shape.code(), Code::kShape);
    EXPECT_STREQ(shape.what(), "head.weight: a tensor of [6, 4] was given; this rank holds [3, 4]");
  });
}

// An owner of the tensor, e.g. an optimizer of libtorch, keeps the same object.
TEST(Parameter, ShardingWithMemory_KeepsItsPartInTheSameTensor) {
  for (const int tp : {1, 2, 3}) {
    on_ranks(tp, [&](const Axis& axis) {
      for (const int dim : {0, 1}) {
        Parameter p({6, 6}, Init::normal(1));
        const Tensor whole = test::numbers({6, 6}, 5);
        p.set_leaf(whole.clone());
        const Tensor held = p.leaf();
        const std::vector<std::vector<Range>> two_each = {
            {{0, 1}, {4, 5}}, {{1, 2}, {5, 6}}, {{2, 4}}};
        p.shard(axis, dim, tp == 3 ? Split::intern(6, two_each) : Split::balanced(6, tp));
        EXPECT_TRUE(p.leaf().is_same(held));
        EXPECT_TRUE(p.use().is_same(held));
        EXPECT_TRUE(held.requires_grad() && held.is_leaf() && held.is_contiguous());
        EXPECT_TRUE(at::equal(held, test::slice_of(p, whole)));
        EXPECT_EQ(held.storage().nbytes(), held.nbytes()) << "the whole stays in memory";
        (held * 2).sum().backward();
        EXPECT_EQ(held.grad().sizes(), held.sizes());
      }
      Parameter stale({6, 4}, Init::normal(1));
      stale.set_leaf(at::ones({6, 4}));
      stale.leaf().sum().backward();
      if (tp == 1) return;
      EXPECT_EQ(thrown_by([&] { stale.shard(axis, 0, Split::balanced(6, tp)); }).code(),
                Code::kUsage);
    });
  }
}

// Oracle: the rows of the whole matrix, each with its scale.
TEST(Parameter, ShardingAnInt8MatrixWithMemory_KeepsTheScalesOfItsRows) {
  const Tensor values = test::whole_numbers({6, 6}, 5), scales = test::numbers({6}, 6);
  for (const int row_dim : {0, 1}) {
    on_ranks(3, [&](const Axis& axis) {
      for (const int dim : {0, 1}) {
        Parameter p({6, 6}, Init::normal(1));
        p.freeze_quantized({.form = QuantizedForm::kInt8, .row_dim = row_dim});
        p.set_quantized(values.to(at::kChar), scales.unsqueeze(1 - row_dim));
        p.shard(axis, dim, Split::intern(6, {{{0, 1}, {4, 5}}, {{1, 2}, {5, 6}}, {{2, 4}}}));
        const Tensor whole = values.to(at::kDouble) * scales.unsqueeze(1 - row_dim);
        EXPECT_TRUE(at::equal(p.leaf().to(at::kDouble) * p.scales(), test::slice_of(p, whole)));
      }
    });
  }
}

// Two elements share a byte, so a rank cannot take its part of the memory.
TEST(Parameter, ShardingAnNf4MatrixWithMemory_IsRefused) {
  on_ranks(2, [&](const Axis& axis) {
    Parameter p({6, 6}, Init::normal(1));
    p.set_name("q_proj.weight");
    p.freeze_quantized({.form = QuantizedForm::kNf4, .row_dim = 0});
    fill_quantized(p, test::numbers({6, 6}, 5));
    for (const Error& error :
         {thrown_by([&] { p.shard(axis, 0, Split::balanced(6, 2)); }), thrown_by([&] {
            p.shard_flat(axis, {0, 18});
          })}) {
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_NE(
          std::string(error.what()).find("q_proj.weight has memory in nf4 already; parallelize"),
          std::string::npos)
          << error.what();
    }
  });
}

TEST(Parameter, ChangeSplit_ReshardsTheSameDimBeforeThereIsMemory) {
  on_ranks(2, [](const Axis& axis) {
    Parameter p({6, 4}, Init::normal(1));
    p.set_name("query.weight");
    EXPECT_EQ(thrown_by([&] { p.change_split(Split::balanced(6, 2)); }).code(), Code::kUsage);
    p.shard(axis, 0, Split::balanced(6, 2));
    p.change_split(Split::balanced(6, 2, 6));
    EXPECT_EQ(p.local_shape(), (std::vector<int64_t>{axis.rank() == 0 ? 6 : 0, 4}));
    EXPECT_EQ(thrown_by([&] { p.change_split(Split::balanced(4, 2)); }).code(), Code::kShape);
    p.set_leaf(at::zeros(p.local_shape()));
    EXPECT_EQ(thrown_by([&] { p.change_split(Split::balanced(6, 2)); }).code(), Code::kUsage);
  });
}

TEST(Parameter, UseWithoutAGradient_DoesNotCount) {
  test::on_ranks(2, [](const Axis& axis) {
    const Tensor local = at::zeros({2, 3});
    const auto made = [&] {
      auto p = std::make_shared<Parameter>(std::vector<int64_t>{3}, Init::constant(1));
      p->set_name("p");
      p->replicate(axis);
      return p;
    };
    const auto evaluated = made(), frozen = made(), paused = made();
    frozen->freeze(at::kFloat);
    for (const auto& p : {evaluated, frozen, paused}) p->set_leaf(at::ones({3}));
    paused->leaf().set_requires_grad(false);
    {
      const at::NoGradGuard evaluation;
      evaluated->used_in(DTensor(local, axis, Replicate{}));
    }
    for (const auto& p : {frozen, paused}) p->used_in(DTensor(local, axis, Replicate{}));
    paused->leaf().set_requires_grad(true);
    for (const auto& p : {evaluated, frozen, paused}) {
      EXPECT_NO_THROW(p->used_in(DTensor(local, axis, Fanout{})));
    }
    EXPECT_TRUE(evaluated->gradient_is_partial());
    EXPECT_TRUE(paused->gradient_is_partial());
    EXPECT_EQ(
        test::thrown_by([&] { evaluated->used_in(DTensor(local, axis, Replicate{})); }).code(),
        Code::kShape);
  });
}

TEST(Parameter, Use_ReadsTheTensorSetByAWrap) {
  Parameter p({2}, Init::constant(1));
  p.set_leaf(at::zeros({2}));
  EXPECT_TRUE(p.use().is_same(p.leaf()));
  const Tensor gathered = at::ones({2});
  p.set_use(gathered);
  EXPECT_TRUE(p.use().is_same(gathered));
  p.set_use({});
  EXPECT_EQ(thrown_by([&] { (void)p.use(); }).code(), Code::kUsage);
}

}  // namespace
}  // namespace cleave::parameter_test
