#include "cleave/parallel/recompute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/nn/attention.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/head_loss.h"
#include "cleave/nn/mlp.h"
#include "cleave/parallel/gradients.h"
#include "cleave/parallel/plan.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: the same layers without recomputation.
namespace cleave::recompute_test {
namespace {

/// Attention with dropout on its probabilities, dropout, an MLP; counts its forwards.
class Block : public Layer {
 public:
  Block()
      : attention_({.hidden = 8,
                    .num_heads = 3,
                    .num_kv_heads = 1,
                    .head_dim = 4,
                    .dropout = 0.3,
                    .rotary = RotaryOptions{.head_dim = 4, .theta = 10000}}),
        dropout_(0.25),
        mlp_({.hidden = 8, .intermediate = 10}) {
    add("attention", attention_);
    add("dropout", dropout_);
    add("mlp", mlp_);
  }
  int num_forwards = 0;

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    ++num_forwards;
    const DTensor h = x + attention_(x, context);
    return h + mlp_(dropout_(h, context), context);
  }

 private:
  Attention attention_;
  Dropout dropout_;
  Mlp mlp_;
};

const Plan kPlan = {{"attention.{q,k,v}_proj", Colwise{}},
                    {"attention.o_proj", Rowwise{}},
                    {"mlp.{gate,up}_proj", Colwise{}},
                    {"mlp.down_proj", Rowwise{}}};

enum class Kind { kNone, kFull, kSelective };

struct Result {
  Tensor y, dx;
  std::vector<Tensor> gradients;
  int num_forwards = 0;
};

Result pass(const Axis& tp, Kind kind) {
  Block block;
  parallelize_module(block, tp, kPlan);
  if (kind == Kind::kFull) recompute(block);
  materialize(block, {.dtype = at::kDouble});
  const Tensor x = test::leaf_of(test::numbers({2, 5, 8}, 3));
  Context context;
  context.training = true;
  context.recompute_attention = kind == Kind::kSelective;
  context.seed = 7;
  context.step = 4;
  const DTensor y = block(DTensor(x, tp, Replicate{}), context);
  (y.local() * test::numbers({2, 5, 8}, 4)).sum().backward();
  finish_gradients(block.parameters(), tp);
  Result out{.y = y.local().detach(), .dx = x.grad(), .gradients = {}, .num_forwards = 0};
  for (const auto& p : block.parameters()) out.gradients.push_back(p->leaf().grad());
  out.num_forwards = block.num_forwards;
  return out;
}

TEST(Recompute, FullAndSelectiveWithDropout_EqualThePassWithoutIt) {
  for (const int tp : {1, 2, 3}) {
    test::on_ranks(tp, [](const Axis& axis) {
      const Result want = pass(axis, Kind::kNone);
      for (const Kind kind : {Kind::kFull, Kind::kSelective}) {
        const Result got = pass(axis, kind);
        EXPECT_TRUE(at::equal(got.y, want.y));
        EXPECT_TRUE(at::equal(got.dx, want.dx));
        for (size_t i = 0; i < want.gradients.size(); ++i) {
          EXPECT_TRUE(at::equal(got.gradients[i], want.gradients[i])) << i;
        }
        EXPECT_EQ(got.num_forwards, kind == Kind::kFull ? 2 : 1);
      }
    });
  }
}

// As in the blocks below the first adapter, and in the block with it.
TEST(Recompute, InputWithoutGradient_IsRecomputedForTrainedWeightsOnly) {
  for (const size_t num_trained : {0U, 1U}) {
    std::vector<Tensor> gradients;
    for (const bool recomputes : {false, true}) {
      Block block;
      block.name_tree();
      const Parameters parameters = block.parameters();
      for (size_t i = num_trained; i < parameters.size(); ++i) parameters[i]->freeze(at::kDouble);
      if (recomputes) recompute(block);
      materialize(block, {.dtype = at::kDouble});
      const Tensor x = test::numbers({2, 5, 8}, 3);
      const Tensor y = block(DTensor(x, Axis(), Replicate{}), Context()).local();
      EXPECT_EQ(y.requires_grad(), num_trained > 0);
      if (num_trained > 0) (y * test::numbers({2, 5, 8}, 4)).sum().backward();
      EXPECT_EQ(block.num_forwards, recomputes && num_trained > 0 ? 2 : 1);
      gradients.push_back(parameters[0]->leaf().grad());
    }
    EXPECT_EQ(gradients[1].defined(), num_trained > 0);
    if (num_trained > 0) {
      EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
    }
  }
}

// Oracle: libtorch's gradient. Without gradients, the head computes the loss of these few tokens.
TEST(Recompute, HeadThatMayComputeItsLoss_GivesLogitsWhileGradientsAreWanted) {
  Linear head({.in_features = 6, .out_features = 23, .bias = false});
  compute_loss_in_parts(head, {.most_bytes = 1});
  recompute(head);
  materialize(head, {.seed = 2, .dtype = at::kDouble});
  const Tensor x = at::linspace(-1, 2, 18, at::kDouble).view({1, 3, 6});
  const Tensor labels = at::tensor({2, -100, 5}, at::kLong).view({1, 3});
  Context context;
  context.head_loss = std::make_shared<const HeadLoss>(HeadLoss{.labels = labels, .count = 2});
  const Tensor input = x.clone().requires_grad_();
  const DTensor logits = head(DTensor(input, Axis(), Replicate{}), context);
  ASSERT_EQ(logits.dim(), 3);
  cross_entropy(logits, labels).local().backward();
  const Tensor plain = x.clone().requires_grad_();
  const Tensor weight = head.weight()->leaf().detach().clone().requires_grad_();
  at::cross_entropy_loss(at::linear(plain, weight).flatten(0, 1), labels.flatten()).backward();
  EXPECT_LE(test::largest_difference(input.grad(), plain.grad()), 1e-14);
  EXPECT_LE(test::largest_difference(head.weight()->leaf().grad(), weight.grad()), 1e-14);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(head(DTensor(x, Axis(), Replicate{}), context).dim(), 0);
}

TEST(Recompute, ModelDestroyedBeforeBackward_IsRefused) {
  Tensor y;
  {
    Block block;
    recompute(block);
    materialize(block, {.dtype = at::kDouble});
    y = block(DTensor(test::leaf_of(test::numbers({2, 5, 8}, 3)), {}, Replicate{}), {}).local();
  }
  const Error error = test::thrown_by([&] { y.sum().backward(); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_NE(std::string(error.what()).find("keep it until backward ends"), std::string::npos);
}

/// x * weight + another layer's output, as a decoder reads its encoder's states.
class ReadsAnother : public Layer {
 public:
  ReadsAnother() { add("weight", weight_); }
  Tensor other;

 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    return x.with(x.local() * weight_->use() + other);
  }

 private:
  std::shared_ptr<Parameter> weight_ =
      std::make_shared<Parameter>(std::vector<int64_t>{3}, Init::constant(2));
};

TEST(Recompute, TensorWithAGradientThatIsNoInput_IsRefusedInOneLine) {
  ReadsAnother layer;
  recompute(layer);
  materialize(layer, {.dtype = at::kDouble});
  const Tensor x = test::leaf_of(test::numbers({2, 3}, 1));
  const Tensor encoder = test::leaf_of(test::numbers({2, 3}, 2));
  layer.other = encoder.exp();
  const Tensor y = layer(DTensor(x, Axis(), Replicate{}), Context()).local();
  const Error error = test::thrown_by([&] { y.sum().backward(); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_STREQ(error.what(),
               "the model: recompute supports the layer's input and Context::values, and the layer "
               "reads another tensor with a gradient (made by ExpBackward0); add it to "
               "Context::values, or do not recompute this layer");
}

TEST(Recompute, TensorWithoutAGradientOrALeafThatIsNoInput_IsAllowed) {
  for (const bool is_leaf : {false, true}) {
    ReadsAnother layer;
    recompute(layer);
    materialize(layer, {.dtype = at::kDouble});
    const Tensor x = test::leaf_of(test::numbers({2, 3}, 1));
    layer.other = test::numbers({2, 3}, 2).requires_grad_(is_leaf);
    layer(DTensor(x, Axis(), Replicate{}), Context()).local().sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2, 3}, 2, at::kDouble)));
    EXPECT_TRUE(at::equal(layer.parameters()[0]->leaf().grad(), x.detach().sum(0)));
    EXPECT_EQ(layer.other.grad().defined(), is_leaf);
  }
}

}  // namespace
}  // namespace cleave::recompute_test
