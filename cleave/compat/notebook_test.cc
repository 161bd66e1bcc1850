#include "cleave/compat/notebook.h"

#include <cmath>
#include <optional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/model_parallel.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

// The notebook's own test of each class: output, gradients and weights after a step compared with
// the unsplit layer, here plain tensor functions in fp64.
namespace cleave::notebook_test {
namespace {

using test::largest_difference;
using test::leaf_of;
using test::on_model_parallel;
using test::Weights;
using test::whole_numbers;

constexpr double kTolerance = 1e-12;  // fp64, values of order 1, sums of less than 100 terms

using Whole = std::function<Tensor(const Weights&, const Tensor&)>;

/// Compares one rank's layer with the unsplit one.
template <class Layer>
void expect_rank_equals(Layer& layer, const test::Unsplit& want) {
  const auto where = str(" tp=", notebook::tp_degree(), " rank=", notebook::tp_rank());
  test::fill(layer, want.weights, at::kDouble);
  const bool is_ids = !want.x.is_floating_point();
  const Tensor x = is_ids ? want.x : leaf_of(want.x);
  const Tensor y = layer(x);
  EXPECT_LE(largest_difference(y, want.y), kTolerance) << "output" << where;
  (y * want.upstream).sum().backward();
  const Parameters parameters = layer.parameters();
  finish_gradients(parameters, notebook::tp_grp());
  if (!is_ids) {
    EXPECT_LE(largest_difference(x.grad(), want.x.grad()), kTolerance) << "input" << where;
  }
  const auto gradient = [&](const auto& p) { return want.leaves.at(p->name()).grad(); };
  for (const auto& p : parameters) {
    EXPECT_LE(largest_difference(p->leaf().grad(), test::slice_of(*p, gradient(p))), kTolerance)
        << p->name() << where;
  }
  Optimizer(parameters, {.kind = OptimizerOptions::Kind::kSgd}).step(0.5);
  for (const auto& p : parameters) {
    const Tensor stepped = want.weights.at(p->name()) - 0.5 * gradient(p);
    EXPECT_LE(largest_difference(p->leaf(), test::slice_of(*p, stepped)), kTolerance)
        << "stepped " << p->name() << where;
  }
}

/// On 1, 2, 3 and 4 ranks.
template <class Make>
void expect_equals_unsplit(const Make& make, const Whole& whole, const Tensor& x) {
  std::optional<test::Unsplit> want;
  on_model_parallel(1, 1, [&] {
    want.emplace(test::LayerCase{.make = make, .plan = {}, .reference = whole, .x = x});
  });
  for (const int tp : {1, 2, 3, 4}) {
    on_model_parallel(tp, 1, [&] { expect_rank_equals(*make(), *want); });
  }
}

/// x weight^T, and the bias where there is one.
Tensor linear(const Weights& w, const std::string& name, const Tensor& x) {
  const Tensor y = x.matmul(w.at(name + "weight").t());
  return w.contains(name + "bias") ? y + w.at(name + "bias") : y;
}

TEST(Notebook, Layers_HaveTheTypeOfTheirOption) {
  on_model_parallel(2, 1, [] {
    const at::ScalarType type = at::kBFloat16;
    notebook::Embedding embedding(7, 6, type);
    notebook::ColWiseLinear linear(6, 6, /*bias=*/true, type);
    notebook::MultiHeadSelfAttention attention(6, 2, /*bias=*/true, type);
    const notebook::FeedForwardOptions options{
        .in_features = 6, .hidden_features = 5, .out_features = 6, .bias = true, .dtype = type};
    notebook::FeedForwardBlock block(options);
    notebook::ColRowLinearPair pair(options);
    for (Layer* layer : std::vector<Layer*>{&embedding, &linear, &attention, &block, &pair}) {
      nxd::move_model_to_device(*layer, at::kCPU, {.seed = 1});
      for (const auto& p : layer->parameters()) EXPECT_EQ(p->leaf().scalar_type(), type);
    }
    const Tensor y = pair(block(attention(linear(embedding(test::ids({2, 3}, 7, 1))))));
    EXPECT_EQ(y.scalar_type(), type);
    y.sum().backward();
  });
}

TEST(Notebook, ColWiseLinear_IsTheUnsplitLinear) {
  for (const bool bias : {false, true}) {
    expect_equals_unsplit([bias] { return std::make_unique<notebook::ColWiseLinear>(6, 7, bias); },
                          [](const Weights& w, const Tensor& x) { return linear(w, "", x); },
                          test::numbers({2, 5, 6}, 1));
  }
}

TEST(Notebook, EmbeddingShardedAlongTheHiddenDimension_IsTheUnsplitTable) {
  expect_equals_unsplit(
      [] { return std::make_unique<notebook::Embedding>(11, 7); },
      [](const Weights& w, const Tensor& ids) { return at::embedding(w.at("weight"), ids); },
      test::ids({2, 5}, 11, 2));
}

// 5 heads of 2: uneven on 2, 3 and 4 ranks.
TEST(Notebook, MultiHeadSelfAttention_IsTheUnsplitAttention) {
  for (const bool bias : {false, true}) {
    const auto whole = [](const Weights& w, const Tensor& x) {
      const auto heads = [&](const char* name) {
        return linear(w, name, x).view({x.size(0), x.size(1), 5, 2}).transpose(1, 2);
      };
      const Tensor scores = heads("query.").matmul(heads("key.").transpose(2, 3)) / std::sqrt(2.0);
      const Tensor y = scores.softmax(-1).matmul(heads("value."));
      return linear(w, "output.", y.transpose(1, 2).flatten(2));
    };
    expect_equals_unsplit(
        [bias] { return std::make_unique<notebook::MultiHeadSelfAttention>(10, 5, bias); }, whole,
        test::numbers({2, 6, 10}, 3));
  }
}

TEST(Notebook, MultiHeadSelfAttention_IgnoresPadding) {
  on_model_parallel(2, 1, [] {
    notebook::MultiHeadSelfAttention attention(8, 4);
    nxd::move_model_to_device(attention, at::kCPU, {.seed = 1});
    const Tensor x = test::numbers({1, 6, 8}, 4).to(at::kFloat);
    Context context;
    context.key_mask = at::ones({1, 6}, at::kBool);
    context.key_mask.narrow(1, 4, 2).fill_(false);
    const Tensor masked = attention(x, context).narrow(1, 0, 4);
    EXPECT_LE(largest_difference(masked, attention(x.narrow(1, 0, 4))), 1e-6);
    EXPECT_GT(largest_difference(masked, attention(x).narrow(1, 0, 4)), 1e-4);
  });
}

TEST(Notebook, FeedForwardBlockAndColRowLinearPair_AreTheSameUnsplitFunction) {
  for (const bool bias : {false, true}) {
    const notebook::FeedForwardOptions options{
        .in_features = 6, .hidden_features = 9, .out_features = 3, .bias = bias};
    const auto whole = [](const Weights& w, const Tensor& x) {
      return linear(w, "second.", at::gelu(linear(w, "first.", x)));
    };
    const Tensor x = test::numbers({2, 5, 6}, 5);
    expect_equals_unsplit([&] { return std::make_unique<notebook::FeedForwardBlock>(options); },
                          whole, x);
    expect_equals_unsplit([&] { return std::make_unique<notebook::ColRowLinearPair>(options); },
                          whole, x);
  }
}

/// Each rank's value or gradient, whole numbers.
Tensor of_rank(int rank, uint64_t seed) {
  return whole_numbers({3, 2}, seed + static_cast<uint64_t>(rank));
}

Tensor sum_over_ranks(uint64_t seed) {
  Tensor sum = at::zeros({3, 2}, at::kDouble);
  for (int r = 0; r < notebook::tp_degree(); ++r) sum = sum + of_rank(r, seed);
  return sum;
}

/// Compares the value, and the gradient of x under `upstream`, exactly.
void expect_exactly(const std::function<Tensor(const Tensor&)>& f, const Tensor& upstream,
                    const Tensor& value, const Tensor& gradient) {
  const Tensor x = leaf_of(of_rank(notebook::tp_rank(), 1));
  const Tensor y = f(x);
  EXPECT_TRUE(at::equal(y, value));
  (y * upstream).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), gradient));
}

// Oracle: the table of the paper, on whole numbers.
TEST(Notebook, Communication_HasThePapersValuesAndGradients) {
  for (const int tp : {1, 2, 3}) {
    on_model_parallel(tp, 1, [] {
      const int rank = notebook::tp_rank();
      const Tensor mine = of_rank(rank, 1), upstream = of_rank(rank, 20);
      expect_exactly(notebook::Duplication::apply, upstream, mine, sum_over_ranks(20));
      expect_exactly(notebook::AllReduce::apply, upstream, sum_over_ranks(1), upstream);
      std::vector<Tensor> pieces, all_of_upstream;
      for (int r = 0; r < notebook::tp_degree(); ++r) {
        pieces.push_back(of_rank(r, 1));
        all_of_upstream.push_back(of_rank(r, 40));  // the same on every rank: replicated work
      }
      expect_exactly(notebook::AllGather::apply, at::cat(all_of_upstream, -1), at::cat(pieces, -1),
                     of_rank(rank, 40));
    });
  }
}

TEST(Notebook, Init_MakesBothCommunicators) {
  run_ranks(4, [](World& world) {
    EXPECT_EQ(test::thrown_by([] { notebook::tp_degree(); }).code(), Code::kUsage);
    EXPECT_EQ(test::thrown_by([&] { notebook::init(world, 3); }).code(), Code::kShape);
    notebook::init(world);  // the world shares one model
    EXPECT_EQ(notebook::tp_degree(), 4);
    EXPECT_EQ(notebook::dp_grp().size(), 1);
    destroy_model_parallel();
    notebook::init(world, 2);
    EXPECT_EQ(notebook::tp_rank(), world.rank() % 2);
    const int first = world.rank() / 2 * 2;
    EXPECT_EQ(notebook::tp_grp().ranks(), (std::vector<int>{first, first + 1}));
    EXPECT_EQ(notebook::dp_grp().ranks(),
              (std::vector<int>{world.rank() % 2, world.rank() % 2 + 2}));
    destroy_model_parallel();
  });
}

// A model of these layers; on the same sequences, every layout must give the same losses.
class Classifier : public LayerGroup {
 public:
  Classifier()
      : embedding_(23, 10),
        attention_(10, 5),
        pair_({.in_features = 10, .hidden_features = 14, .out_features = 10}),
        head_({.in_features = 10, .hidden_features = 6, .out_features = 2}) {
    add("embedding", embedding_);
    add("attention", attention_);
    add("pair", pair_);
    add("head", head_);
  }
  Tensor operator()(const Tensor& ids) {
    Tensor x = embedding_(ids);
    x = x + attention_(x);
    return head_((x + pair_(x)).mean(1));
  }

 private:
  notebook::Embedding embedding_;
  notebook::MultiHeadSelfAttention attention_;
  notebook::ColRowLinearPair pair_;
  notebook::FeedForwardBlock head_;
};

std::vector<double> losses_of(int tp, int dp) {
  std::vector<double> losses;
  run_ranks(tp * dp, [&](World& world) {
    notebook::init(world, tp);
    Classifier model;
    nxd::move_model_to_device(model, at::kCPU, {.seed = 3});
    Optimizer optimizer(model.parameters(), {});
    const Tensor ids = test::ids({4, 6}, 23, 1), labels = test::ids({4}, 2, 2);
    const int64_t rows = 4 / dp, begin = rows * notebook::dp_grp().rank();
    for (int step = 0; step < 5; ++step) {
      const Tensor loss =
          at::cross_entropy_loss(model(ids.narrow(0, begin, rows)), labels.narrow(0, begin, rows));
      loss.backward();
      nxd::clip_grad_norm(model.parameters(), 1.0);
      nxd::optimizer_step(optimizer, get_data_parallel_group(as_list), 1e-2);
      optimizer.zero_grad();
      const Tensor sum = notebook::dp_grp().all_reduce(loss.detach(), "loss");
      if (world.rank() == 0) losses.push_back(sum.item<double>() / dp);
    }
    destroy_model_parallel();
  });
  return losses;
}

// fp32: one rounding error is 6e-8 of values of order 1; five steps of AdamW at 1e-2.
TEST(Notebook, ModelOfItsLayers_HasTheSameLossesOnEveryLayout) {
  const std::vector<double> want = losses_of(1, 1);
  EXPECT_LT(want.back(), want.front() - 0.01);
  for (const auto& [tp, dp] : std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {1, 2}, {2, 2}}) {
    const std::vector<double> got = losses_of(tp, dp);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-5) << "step " << i << " tp " << tp << " dp " << dp;
    }
  }
}

}  // namespace
}  // namespace cleave::notebook_test
