#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/compat/nxd.h"
#include "tests/support/golden.h"
#include "tests/support/model_parallel.h"
#include "tests/support/thrown.h"

namespace cleave::nxd_mappings_test {
namespace {

using test::even_sizes;
using test::largest_difference;
using test::leaf_of;
using test::numbers;
using test::on_model_parallel;
using test::piece;
using test::thrown_by;
using test::whole_numbers;

using Mapping = std::function<Tensor(const Tensor&)>;

/// Rank r's x and upstream are functions of r, so every rank knows all of them.
struct Ranks {
  int size = nxd::get_tensor_model_parallel_size();
  std::vector<Tensor> of(at::IntArrayRef shape, uint64_t seed) const {
    std::vector<Tensor> out;
    for (int r = 0; r < size; ++r) {
      out.push_back(whole_numbers(shape, seed + static_cast<uint64_t>(r)));
    }
    return out;
  }
};

Tensor sum(const std::vector<Tensor>& tensors) {
  return at::stack(tensors).sum(0);
}

/// Expects y = f(x) and the gradient of x under `upstream` to be exactly these.
void expect_mapping(const Mapping& f, const Tensor& x, const Tensor& upstream, const Tensor& y,
                    const Tensor& dx, const std::string& what) {
  const Tensor leaf = leaf_of(x);
  const Tensor got = f(leaf);
  EXPECT_TRUE(at::equal(got, y)) << what << " tp=" << nxd::get_tensor_model_parallel_size();
  (got * upstream).sum().backward();
  EXPECT_TRUE(at::equal(leaf.grad(), dx)) << what << " gradient";
}

// Oracle: sums, shards and concatenations of all ranks' values; whole numbers, so exact.
TEST(Mappings, OnEverySize_HaveTheirValueAndTheirGradient) {
  for (const int tp : {1, 2, 3, 4}) {
    on_model_parallel(tp, 1, [] {
      const Ranks ranks;
      const auto rank = static_cast<size_t>(nxd::get_tensor_model_parallel_rank());
      const std::vector<int64_t> whole{2, 5, 7};
      const auto x = ranks.of(whole, 10), u = ranks.of(whole, 20);
      for (const int64_t dim : {int64_t{2}, int64_t{1}}) {
        const auto sizes = even_sizes(whole[static_cast<size_t>(dim)]);
        const auto mine = [&](const Tensor& t) { return piece(t, dim, sizes); };
        const bool last = dim == 2;
        const Mapping scatter = [&](const Tensor& t) {
          return last ? nxd::scatter_to_tensor_model_parallel_region(t)
                      : nxd::scatter_to_sequence_parallel_region(t);
        };
        const Mapping gather = [&](const Tensor& t) {
          return last ? nxd::gather_from_tensor_model_parallel_region(t)
                      : nxd::gather_from_sequence_parallel_region(t, 1, false);
        };
        // x[0] is the same on every rank; each rank has its shard of the upstream u[0].
        expect_mapping(scatter, x[0], mine(u[0]), mine(x[0]), u[0], str("scatter ", dim));
        expect_mapping(gather, mine(x[0]), u[0], x[0], mine(u[0]), str("gather ", dim));
      }
      const auto tokens = [](const Tensor& t) { return piece(t, 1, even_sizes(5)); };
      expect_mapping(nxd::copy_to_tensor_model_parallel_region, x[0], u[rank], x[0], sum(u),
                     "copy");
      expect_mapping(nxd::reduce_from_tensor_model_parallel_region, x[rank], u[0], sum(x), u[0],
                     "reduce");
      expect_mapping([](const Tensor& t) { return nxd::gather_from_sequence_parallel_region(t); },
                     tokens(x[0]), u[rank], x[0], tokens(sum(u)), "gather into sharded work");
      expect_mapping(
          [](const Tensor& t) { return nxd::reduce_scatter_to_sequence_parallel_region(t); },
          x[rank], tokens(u[0]), tokens(sum(x)), u[0], "reduce-scatter");
    });
  }
}

TEST(Mappings, Gathers_TakeShardsOfAnySize) {
  on_model_parallel(3, 1, [] {
    const std::vector<int64_t> sizes{0, 4, 1};
    const Tensor x = whole_numbers({2, 5, 3}, 1), u = whole_numbers({2, 5, 3}, 2);
    expect_mapping(
        [](const Tensor& t) { return nxd::gather_from_sequence_parallel_region(t, 1, false); },
        piece(x, 1, sizes), u, x, piece(u, 1, sizes), "gather");
    expect_mapping([](const Tensor& t) { return nxd::gather_from_sequence_parallel_region(t); },
                   piece(x, 1, sizes), u, x, piece(3 * u, 1, sizes), "gather into sharded work");
  });
}

/// The definition in one process: mean log-probability of the other classes, by autograd.
Tensor reference_loss(const Tensor& logits, const Tensor& labels, double smoothing) {
  const Tensor log_p = at::log_softmax(logits, -1);
  const auto num_classes = static_cast<double>(logits.size(-1));
  const Tensor counted = labels.ne(-100);
  const Tensor right = log_p.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  const Tensor others = (log_p.sum(-1) - right) / (num_classes - 1);
  return at::where(counted, -(1 - smoothing) * right - smoothing * others, at::zeros_like(right));
}

// Oracle: the definition over whole logits in fp64. With 3 classes on 4 ranks, one rank has none.
TEST(ParallelCrossEntropy, OverUnevenAndEmptyClasses_IsTheDefinitionOverAll) {
  for (const int64_t num_classes : {3, 13}) {
    for (const double smoothing : {0.0, 0.1, 1.0}) {
      const Tensor logits = leaf_of(5 * numbers({2, 6, num_classes}, 1));
      Tensor labels = test::ids({2, 6}, num_classes, 2);
      labels[1][3] = -100;
      const Tensor want = reference_loss(logits, labels, smoothing);
      const Tensor upstream = numbers({2, 6}, 3);
      (want * upstream).sum().backward();
      for (const int tp : {1, 2, 3, 4}) {
        on_model_parallel(tp, 1, [&] {
          const auto mine = [&](const Tensor& t) { return piece(t, -1, even_sizes(num_classes)); };
          const Tensor part = leaf_of(mine(logits));
          const Tensor before = part.detach().clone();
          const Tensor loss = nxd::parallel_cross_entropy(part, labels, smoothing);
          EXPECT_TRUE(at::equal(part, before)) << "the input changed";
          EXPECT_LE(largest_difference(loss, want), 1e-13) << num_classes << " " << smoothing;
          (loss * upstream).sum().backward();
          EXPECT_LE(largest_difference(part.grad(), mine(logits.grad())), 1e-13)
              << num_classes << " classes, smoothing " << smoothing << " tp " << tp;
        });
      }
    }
  }
}

// Oracle: recorded values of both definitions.
TEST(ParallelCrossEntropy, OnTheGoldens_GivesNeMosSmoothing) {
  const auto golden = test::golden_cross_entropy();
  int compared = 0;
  for (const auto& [name, want] : golden) {
    const bool smooth = name.ends_with(".ls0.1.kminus1.loss_per_token");
    if (!smooth && !name.ends_with(".ls0.0.loss_per_token")) continue;
    ++compared;
    const std::string base = name.substr(0, name.find('.'));
    const std::string kind = name.substr(0, name.rfind('.'));
    const bool ignores = name.find(".ignore.") != std::string::npos;
    const Tensor& labels = golden.at(base + (ignores ? ".labels_ignore" : ".labels"));
    const Tensor& logits = golden.at(base + ".logits");
    // fp32: a few rounding errors of the largest logit and of the loss.
    const double size = logits.abs().max().item<double>() + want.abs().max().item<double>();
    for (const int tp : {1, 2, 3, 4}) {
      on_model_parallel(tp, 1, [&, &want = want, &name = name] {
        const auto mine = [&](const Tensor& t) { return piece(t, -1, even_sizes(t.size(-1))); };
        const Tensor part = leaf_of(mine(logits));
        const Tensor loss = nxd::parallel_cross_entropy(part, labels, smooth ? 0.1 : 0);
        EXPECT_LE(largest_difference(loss, want), 4e-7 * size) << name << " tp " << tp;
        (loss * golden.at(base + ".upstream")).sum().backward();
        const Tensor& gradient = golden.at(kind + ".grad_upstream");
        EXPECT_LE(largest_difference(part.grad(), mine(gradient)), 4e-7 * size)
            << name << " tp " << tp;
      });
    }
  }
  EXPECT_EQ(compared, 24);
}

TEST(ParallelCrossEntropy, WrongLabelOrSmoothing_IsAnError) {
  on_model_parallel(2, 1, [] {
    const Tensor logits = numbers({2, 3}, 1);
    const auto code = [&](const Tensor& labels, double smoothing) {
      return thrown_by([&] { nxd::parallel_cross_entropy(logits, labels, smoothing); }).code();
    };
    EXPECT_EQ(code(at::tensor({0, 6}), 0), Code::kShape);
    EXPECT_EQ(code(at::tensor({0, 5}), 1.5), Code::kUsage);
    EXPECT_EQ(code(at::tensor({0, 5, 1}), 0), Code::kShape);
  });
}

}  // namespace
}  // namespace cleave::nxd_mappings_test
