#include "cleave/parallel/gradients.h"

#include <cmath>
#include <functional>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/counting_group.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: whole gradients on one rank, in integers, so that sums are exact.
namespace cleave::gradients_test {
namespace {

using test::on_ranks;
using test::whole_numbers;

/// Parameters of every kind on an axis of `tp` ranks: balanced shards of both dims, pieces of a
/// fused matrix, a KV head that all ranks share, a norm used on sharded tokens, a replicated
/// matrix.
struct Model {
  Parameters all;
  explicit Model(const Axis& axis) {
    const int tp = axis.size();
    add(axis, {7, 3}, 0, Split::balanced(7, tp));
    add(axis, {4, 5}, 1, Split::balanced(5, tp));
    std::vector<std::vector<Range>> pieces(static_cast<size_t>(tp));
    pieces.front() = {{0, 1}, {4, 6}};
    pieces.back().insert(pieces.back().begin() + (tp == 1 ? 1 : 0), {1, 4});
    add(axis, {2, 6}, 1, Split::intern(6, pieces));
    add(axis, {2, 3}, 0,
        Split::intern(2, std::vector<std::vector<Range>>(static_cast<size_t>(tp), {{0, 2}})));
    add(axis, {3}, 0, nullptr)->used_in(DTensor(at::zeros({2, 3}), axis, Fanout{}));
    add(axis, {3, 2}, 0, nullptr)->used_in(DTensor(at::zeros({2, 3}), axis, Replicate{}));
  }

  std::shared_ptr<Parameter> add(const Axis& axis, const std::vector<int64_t>& shape, int dim,
                                 const SplitPtr& split) {
    auto p = std::make_shared<Parameter>(shape, Init::constant(0));
    p->set_name(str("p", all.size()));
    p->replicate(axis);
    if (split != nullptr) p->shard(axis, dim, split);
    p->set_leaf(at::zeros(p->local_shape(), at::kDouble));
    all.push_back(p);
    return p;
  }

  /// The whole gradient of a parameter.
  [[nodiscard]] Tensor whole(size_t i) const { return whole_numbers(all[i]->shape(), 20 + i); }

  /// What backward leaves on this rank: the shard, or random parts that sum to the whole where
  /// ranks share elements.
  void set_gradients(const Axis& axis) {
    for (size_t i = 0; i < all.size(); ++i) {
      Tensor g = whole(i);
      if (all[i]->gradient_is_partial()) {
        for (int r = 0; r + 1 < axis.size(); ++r) {
          const Tensor part = whole_numbers(g.sizes(), 100 * (i + 1) + static_cast<uint64_t>(r));
          g = g - part;
          if (r == axis.rank()) {
            g = part;
            break;
          }
        }
      }
      all[i]->leaf().mutable_grad() = test::slice_of(*all[i], g).clone();
    }
  }

  [[nodiscard]] double whole_norm() const {
    double squares = 0;
    for (size_t i = 0; i < all.size(); ++i) squares += whole(i).square().sum().item<double>();
    return std::sqrt(squares);
  }
};

TEST(FinishGradients, PartsOfSharedElements_AreSummedAndOthersKept) {
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [](const Axis& inner) {
      const auto group = std::make_shared<test::CountingGroup>(inner.group());
      const Axis axis(group);
      Model model(axis);
      model.set_gradients(axis);
      model.all.front()->leaf().mutable_grad().reset();  // unused on this rank: zeros
      finish_gradients(model.all, axis);
      EXPECT_LE(group->taken()["all_reduce"], 1) << "one bucket";
      for (size_t i = 0; i < model.all.size(); ++i) {
        const auto& p = model.all[i];
        Tensor want = test::slice_of(*p, model.whole(i));
        if (i == 0) want = at::zeros_like(want);
        EXPECT_TRUE(at::equal(p->leaf().grad(), want)) << p->name() << " tp=" << axis.size();
      }
    });
  }
}

TEST(GradientNorm, OnEverySplit_CountsEachElementOnce) {
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [](const Axis& axis) {
      Model model(axis);
      model.set_gradients(axis);
      finish_gradients(model.all, axis);
      const GradientNorm norm = gradient_norm(model.all, axis);
      EXPECT_NEAR(norm.value, model.whole_norm(), 1e-12 * model.whole_norm());
      EXPECT_EQ(norm.not_finite, "");
    });
  }
}

TEST(GradientNorm, NotFinite_NamesTheFirstParameterOnEveryRank) {
  for (const int tp : {1, 2, 4}) {
    for (const double wrong : {std::copysign(NAN, -1.0), std::numeric_limits<double>::infinity()}) {
      on_ranks(tp, [&](const Axis& axis) {
        Model model(axis);
        model.set_gradients(axis);
        finish_gradients(model.all, axis);
        // The last rank's part of p1, and p5, which rank 0 counts.
        if (axis.rank() == tp - 1) model.all[1]->leaf().mutable_grad()[3].fill_(wrong);
        model.all[5]->leaf().mutable_grad()[0].fill_(wrong);
        const GradientNorm norm = gradient_norm(model.all, axis);
        // Without a sign: printed, it is not "-nan".
        EXPECT_EQ(str(norm.value), std::isnan(wrong) ? "nan" : "inf");
        EXPECT_EQ(norm.not_finite, "p1") << "rank " << axis.rank() << " of " << tp;
      });
    }
  }
}

TEST(ClipGradients, AboveTheLimit_ScalesByLimitOverNorm) {
  on_ranks(2, [](const Axis& axis) {
    Model model(axis);
    model.set_gradients(axis);
    finish_gradients(model.all, axis);
    const double norm = gradient_norm(model.all, axis).value;
    std::vector<Tensor> before;
    for (const auto& p : model.all) before.push_back(p->leaf().grad().clone());
    for (const double limit : {2 * norm, norm + 1e-6, std::nan("")}) {
      clip_gradients(model.all, norm, limit);
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(at::equal(model.all[i]->leaf().grad(), before[i])) << "limit " << limit;
      }
    }
    clip_gradients(model.all, norm, 0.5);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_LE(
          test::largest_difference(model.all[i]->leaf().grad(), before[i] * (0.5 / (norm + 1e-6))),
          1e-15);
    }
    EXPECT_NEAR(gradient_norm(model.all, axis).value, 0.5, 1e-6);
  });
}

/// torch's formula on whole gradients: the norm of the parameters' norms.
double torch_norm(const Model& model, double power) {
  std::vector<Tensor> norms;
  for (size_t i = 0; i < model.all.size(); ++i) {
    norms.push_back(at::linalg_vector_norm(model.whole(i), power));
  }
  return at::linalg_vector_norm(at::stack(norms), power).item<double>();
}

TEST(ClipGradNorm, OfEveryOrderOnEverySplit_IsTorchsOnWholeGradients) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const int tp : {1, 2, 3, 4}) {
    for (const double power : {0.5, 1.0, 2.0, 3.0, infinity}) {
      on_ranks(tp, [&](const Axis& axis) {
        Model model(axis);
        model.set_gradients(axis);
        finish_gradients(model.all, axis);
        Parameters twice = model.all;  // a tied parameter counts once
        twice.push_back(model.all.front());
        const double want = torch_norm(model, power);
        const double norm = clip_grad_norm(twice, 0.25 * want, power).value;
        EXPECT_NEAR(norm, want, 1e-13 * want) << "tp " << tp << " norm_type " << power;
        const double factor = std::min(1.0, 0.25 * want / (want + 1e-6));
        for (size_t i = 0; i < model.all.size(); ++i) {
          const Tensor whole = test::slice_of(*model.all[i], model.whole(i));
          EXPECT_LE(test::largest_difference(model.all[i]->leaf().grad(), whole * factor), 1e-13);
        }
      });
    }
  }
}

TEST(ClipGradNorm, OfAnyRange_TakesThose) {
  on_ranks(2, [](const Axis& axis) {
    Model model(axis);
    model.set_gradients(axis);
    finish_gradients(model.all, axis);
    model.all[3]->leaf().mutable_grad().reset();  // unused: counts as zeros
    auto matrices = model.all | std::views::filter([](const auto& p) {
                      return p->shape().size() == 2 && p->name() != "p0";
                    });
    double squares = 0;
    for (const size_t i : {1UL, 2UL, 5UL}) squares += model.whole(i).square().sum().item<double>();
    const double whole_first = model.all[0]->leaf().grad().abs().sum().item<double>();
    EXPECT_NEAR(clip_grad_norm(matrices, 1e-3).value, std::sqrt(squares), 1e-12);
    EXPECT_EQ(model.all[0]->leaf().grad().abs().sum().item<double>(), whole_first);
    EXPECT_NEAR(clip_grad_norm(matrices, 1).value, 1e-3, 1e-8);
  });
}

TEST(ClipGradNorm, OfTinyGradientsInFloats_LosesNothing) {
  on_ranks(2, [](const Axis& axis) {
    const auto p = std::make_shared<Parameter>(std::vector<int64_t>{3}, Init::constant(0));
    p->shard(axis, 0, Split::balanced(3, 2));
    p->set_leaf(at::zeros(p->local_shape(), at::kFloat));
    p->leaf().mutable_grad() = at::full(p->local_shape(), 1e-30, at::kFloat);
    const auto value = static_cast<double>(1e-30F);
    EXPECT_NEAR(clip_grad_norm(Parameters{p}, 1).value, std::sqrt(3) * value, 1e-44);
    EXPECT_NEAR(clip_grad_norm(Parameters{p}, 1, 8).value, std::pow(3, 0.125) * value, 1e-44);
  });
}

TEST(ClipGradNorm, NotFinite_NamesItAndScalesNothing) {
  for (const double power : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    for (const double wrong : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      on_ranks(3, [&](const Axis& axis) {
        Model model(axis);
        model.set_gradients(axis);
        finish_gradients(model.all, axis);
        const Tensor before = model.all[0]->leaf().grad().clone();
        if (axis.rank() == 2) model.all[1]->leaf().mutable_grad()[1].fill_(wrong);
        EXPECT_EQ(clip_grad_norm(model.all, 1e-6, power).not_finite, "p1") << power;
        EXPECT_TRUE(at::equal(model.all[0]->leaf().grad(), before));
        const Error error = test::thrown_by([&] { clip_grad_norm(model.all, 1e-6, power, true); });
        EXPECT_EQ(error.code(), Code::kNumerics);
        EXPECT_NE(std::string(error.what()).find("p1"), std::string::npos) << error.what();
      });
    }
  }
}

TEST(ClipGradNorm, InvalidNormType_IsRefused) {
  const auto p = std::make_shared<Parameter>(std::vector<int64_t>{2}, Init::constant(0));
  p->set_leaf(at::zeros({2}));
  const Parameters one{p};
  for (const double power : {0.0, -1.0, std::nan("")}) {
    EXPECT_EQ(test::thrown_by([&] { clip_grad_norm(one, 1, power); }).code(), Code::kUsage);
  }
  EXPECT_EQ(test::thrown_by([&] { clip_grad_norm(one, -1); }).code(), Code::kUsage);
  EXPECT_EQ(clip_grad_norm(one, 1).value, 0);
  EXPECT_EQ(clip_grad_norm(one, 1, std::numeric_limits<double>::infinity()).value, 0);
}

// As of a pipeline stage without trained parameters: without this error the other stages would
// wait.
TEST(ClipGradNorm, WithoutAParameterThatHasMemory_IsRefused) {
  const auto elsewhere = std::make_shared<Parameter>(std::vector<int64_t>{2}, Init::constant(0));
  for (const Parameters& list : {Parameters{}, Parameters{elsewhere}}) {
    const Error error = test::thrown_by([&] { clip_grad_norm(list, 1); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("the frozen ones too"), std::string::npos);
  }
}

TEST(SumGradients, OverDataParallelRanks_AddsInBuckets) {
  on_ranks(3, [](const Axis& inner) {
    const auto group = std::make_shared<test::CountingGroup>(inner.group());
    const Axis dp(group);
    // 20 MB, 20 MB and a few bytes: two buckets of 32 MiB.
    const std::vector<std::vector<int64_t>> shapes = {{5, 500000}, {2500000}, {3, 2}, {4}};
    Parameters parameters;
    for (const auto& shape : shapes) {
      auto p = std::make_shared<Parameter>(shape, Init::constant(0));
      p->set_leaf(at::zeros(shape, at::kDouble));
      if (shape[0] != 3) {  // that of [3, 2] stays undefined: zeros
        p->leaf().mutable_grad() = at::full(shape, 1.0 + dp.rank(), at::kDouble);
      }
      parameters.push_back(p);
    }
    sum_gradients(parameters, dp);
    EXPECT_EQ(group->taken(), (std::map<std::string, int>{{"all_reduce", 2}}));
    for (const size_t i : {0UL, 1UL, 3UL}) {
      const Tensor want = at::full(shapes[i], 1.0 + 2.0 + 3.0, at::kDouble);
      EXPECT_TRUE(at::equal(parameters[i]->leaf().grad(), want)) << i;
    }
    EXPECT_TRUE(at::equal(parameters[2]->leaf().grad(), at::zeros({3, 2}, at::kDouble)));
  });
}

TEST(SumGradients, OfExpertsThatRanksShareOut_IsRefused) {
  on_ranks(2, [](const Axis& dp) {
    auto p = std::make_shared<Parameter>(std::vector<int64_t>{2}, Init::constant(0));
    p->set_name("experts.0");
    p->set_copies(Axis(), /*is_here=*/true);
    p->set_leaf(at::zeros({2}, at::kDouble));
    p->leaf().mutable_grad() = at::ones({2}, at::kDouble);
    const Error error = test::thrown_by([&] { sum_gradients({p}, dp); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("experts.0"), std::string::npos) << error.what();
    EXPECT_TRUE(at::equal(p->leaf().grad(), at::ones({2}, at::kDouble)));
  });
}

// Oracle: the whole gradient times the number of dp ranks, which all have the same parts.
TEST(SumGradients, CalledTwiceInAStep_SumOnce) {
  test::on_world(4, [](World& world) {
    const Mesh mesh = Mesh::build(world, {{"dp", 2}, {"tp", 2}});
    // Another mesh over the same ranks has different axis objects.
    const Mesh again = Mesh::build(world, {{"dp", 2}, {"tp", 2}});
    Model model(mesh["tp"]);
    model.set_gradients(mesh["tp"]);
    for (const Mesh* m : {&mesh, &again}) {
      finish_gradients(model.all, (*m)["tp"]);
      sum_gradients(model.all, (*m)["dp"]);
    }
    for (size_t i = 0; i < model.all.size(); ++i) {
      const auto& p = model.all[i];
      EXPECT_TRUE(p->leaf().grad().equal(2 * test::slice_of(*p, model.whole(i)))) << p->name();
    }
    average_gradients(model.all, mesh["tp"], mesh["dp"]);
    average_gradients(model.all, mesh["tp"], mesh["dp"]);
    for (size_t i = 0; i < model.all.size(); ++i) {
      const auto& p = model.all[i];
      EXPECT_TRUE(p->leaf().grad().equal(test::slice_of(*p, model.whole(i)))) << p->name();
    }
    // Backward adds to existing gradients.
    for (const auto& p : model.all) p->leaf().mutable_grad().add_(1);
    for (const auto& action : std::vector<std::function<void()>>{
             [&] { finish_gradients(model.all, mesh["tp"]); },
             [&] { sum_gradients(model.all, mesh["dp"]); },
             [&] { average_gradients(model.all, mesh["tp"], mesh["dp"]); }}) {
      const Error error = test::thrown_by(action);
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_NE(std::string(error.what()).find("zero_grad()"), std::string::npos) << error.what();
    }
    model.set_gradients(mesh["tp"]);  // new tensors, as after zero_grad and backward
    average_gradients(model.all, mesh["tp"], mesh["dp"]);
    EXPECT_NEAR(clip_grad_norm(model.all, 1e9).value, model.whole_norm(), 1e-12);
  });
}

TEST(ClipGradNorm, OfGradientsInParts_IsRefusedWithTheMissingCall) {
  on_ranks(2, [](const Axis& axis) {
    Model model(axis);
    model.set_gradients(axis);
    const Error error = test::thrown_by([&] { clip_grad_norm(model.all, 1); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("call finish_gradients"), std::string::npos)
        << error.what();
  });
}

}  // namespace
}  // namespace cleave::gradients_test
