#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/nn/embedding.h"
#include "cleave/nn/inference_weight.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"
#include "cleave/runtime/kernel_switches.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

// Oracle: the same layer as plain tensor functions on whole weights, in fp64. Sizes do not divide
// by the number of ranks, and some are smaller.
namespace cleave::layers_test {
namespace {

using test::expect_equals_unsplit;
using test::LayerCase;
using test::numbers;
using test::Weights;

/// With and without a bias, and both storage orders of the weight.
const std::vector<LinearOptions> kLinears = {
    {.in_features = 7, .out_features = 5, .bias = false},
    {.in_features = 7, .out_features = 5},
    {.in_features = 7, .out_features = 5, .bias = false, .transposed = true},
    {.in_features = 7, .out_features = 5, .transposed = true},
};

LayerCase linear_case(const LinearOptions& o, const Plan& plan) {
  return {.make = [o] { return std::make_unique<Linear>(o); },
          .plan = plan,
          .reference =
              [o](const Weights& w, const Tensor& x) {
                const Tensor& weight = w.at("weight");
                const Tensor y = x.matmul(o.transposed ? weight : weight.t());
                return o.bias ? y + w.at("bias") : y;
              },
          .x = numbers({2, 3, o.in_features}, 1)};
}

TEST(Linear, Whole_EqualsTheUnsplitLayer) {
  for (const LinearOptions& o : kLinears) {
    expect_equals_unsplit(linear_case(o, {}));
    LayerCase on_tokens = linear_case(o, {});
    on_tokens.input = Shard{1};
    expect_equals_unsplit(on_tokens);
  }
}

TEST(Linear, Colwise_EqualsTheUnsplitLayer) {
  for (const LinearOptions& o : kLinears) {
    expect_equals_unsplit(linear_case(o, {{"", Colwise{}}}));
    expect_equals_unsplit(linear_case(o, {{"", Colwise{.output = Replicate{}}}}));
    LayerCase on_tokens = linear_case(o, {{"", Colwise{}}});
    on_tokens.input = Shard{1};
    expect_equals_unsplit(on_tokens);
  }
}

TEST(Linear, Rowwise_EqualsTheUnsplitLayer) {
  for (const LinearOptions& o : kLinears) {
    for (const Placement& input : {Placement(Replicate{}), Placement(Shard{-1})}) {
      for (const Placement& output :
           {Placement(Replicate{}), Placement(Shard{1}), Placement(Shard{0})}) {
        LayerCase c = linear_case(o, {{"", Rowwise{.output = output}}});
        c.input = input;
        expect_equals_unsplit(c);
      }
    }
  }
}

TEST(Linear, FewerFeaturesThanRanks_EqualsTheUnsplitLayer) {
  for (const Style& style : {Style(Rowwise{}), Style(Colwise{})}) {
    for (const bool transposed : {false, true}) {
      expect_equals_unsplit(linear_case(
          {.in_features = 2, .out_features = 2, .transposed = transposed}, {{"", style}}));
    }
  }
}

TEST(Linear, NonFiniteWeightToInt8_IsNamed) {
  for (const float bad : {NAN, INFINITY}) {
    Linear linear({.in_features = 7, .out_features = 5});
    materialize(linear, {.dtype = at::kFloat});
    to_int8(linear);
    at::NoGradGuard no_grad;
    linear.weight()->leaf().view(-1)[20] = bad;
    const Error error = test::thrown_by([&] { to_int8(linear); });
    EXPECT_EQ(error.code(), Code::kNumerics);
    EXPECT_THAT(error.what(), testing::StartsWith("weight has a NaN or infinity"));
  }
}

TEST(Linear, NonFiniteWeightToInt4_IsNamed) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    Linear linear({.in_features = 7, .out_features = 5});
    materialize(linear, {.dtype = at::kFloat});
    EXPECT_TRUE(to_int4(linear, /*has_mins=*/true));
    at::NoGradGuard no_grad;
    linear.weight()->leaf().view(-1)[20] = bad;
    const Error error = test::thrown_by([&] { to_int4(linear, /*has_mins=*/true); });
    EXPECT_EQ(error.code(), Code::kNumerics);
    EXPECT_THAT(error.what(), testing::StartsWith("weight has a NaN or infinity"));
  }
}

/// The error of a root layer, which has no path, for an input of width 5.
std::string refusal_of(Layer& layer) {
  materialize(layer, {.dtype = at::kDouble});
  return test::thrown_by([&] {
           layer(DTensor(numbers({2, 3, 5}, 1), Axis(), Replicate{}), Context());
         })
      .what();
}

TEST(Layer, ErrorWithoutAPath_BeginsWithTheSubject) {
  Linear linear({.in_features = 7, .out_features = 5});
  EXPECT_EQ(refusal_of(linear), "input of [2, 3, 5] has width 5; in_features=7");
  RmsNorm norm(6, 1e-5);
  EXPECT_EQ(refusal_of(norm), "input has width 5; the norm has 6");
}

LayerCase embedding_case(int64_t num_embeddings, const Plan& plan) {
  return {.make =
              [num_embeddings] {
                return std::make_unique<Embedding>(
                    EmbeddingOptions{.num_embeddings = num_embeddings, .embedding_dim = 5});
              },
          .plan = plan,
          .reference =
              [](const Weights& w, const Tensor& ids) {
                return w.at("weight").index_select(0, ids.flatten()).view({2, 6, 5});
              },
          .x = test::ids({2, 6}, num_embeddings, 3)};
}

TEST(Embedding, EveryShard_EqualsTheUnsplitLayer) {
  for (const int64_t vocabulary : {11, 2}) {  // 2: ranks without a row
    expect_equals_unsplit(embedding_case(vocabulary, {}));
    expect_equals_unsplit(embedding_case(vocabulary, {{"", Rowwise{}}}));
    expect_equals_unsplit(embedding_case(vocabulary, {{"", Rowwise{.output = Shard{1}}}}));
    expect_equals_unsplit(embedding_case(vocabulary, {{"", Colwise{}}}));
    expect_equals_unsplit(embedding_case(vocabulary, {{"", Colwise{.output = Replicate{}}}}));
  }
  LayerCase on_tokens = embedding_case(11, {});
  on_tokens.input = Shard{1};
  expect_equals_unsplit(on_tokens);
}

TEST(Embedding, Scale_MultipliesTheRows) {
  for (const Plan& plan : {Plan{}, Plan{{"", Rowwise{}}}, Plan{{"", Colwise{}}}}) {
    LayerCase scaled = embedding_case(11, plan);
    scaled.make = [] {
      return std::make_unique<Embedding>(
          EmbeddingOptions{.num_embeddings = 11, .embedding_dim = 5, .scale = 3});
    };
    scaled.reference = [](const Weights& w, const Tensor& ids) {
      return 3 * w.at("weight").index_select(0, ids.flatten()).view({2, 6, 5});
    };
    expect_equals_unsplit(scaled);
  }
}

// The square root of 3072 is 55.4256; the nearest bf16 number is 55.5.
TEST(Embedding, ScaleInBf16_IsRoundedFirst) {
  Embedding layer({.num_embeddings = 2, .embedding_dim = 1, .scale = std::sqrt(3072.0)});
  layer.name_tree();
  layer.weight()->set_leaf(at::tensor({1.0, 2.0}).to(at::kBFloat16).view({2, 1}));
  const DTensor ids(at::arange(2).view({1, 2}), Axis(), Replicate{});
  EXPECT_TRUE(at::equal(layer(ids, Context()).local().flatten(),
                        at::tensor({55.5, 111.0}).to(at::kBFloat16)));
}

TEST(Linear, SoftCap_BoundsTheResults) {
  for (const Plan& plan : {Plan{}, Plan{{"", Colwise{}}}}) {
    expect_equals_unsplit({.make =
                               [] {
                                 return std::make_unique<Linear>(LinearOptions{
                                     .in_features = 6, .out_features = 5, .soft_cap = 0.4});
                               },
                           .plan = plan,
                           .reference =
                               [](const Weights& w, const Tensor& x) {
                                 const Tensor y = x.matmul(w.at("weight").t()) + w.at("bias");
                                 return 0.4 * (y / 0.4).tanh();
                               },
                           .x = numbers({2, 3, 6}, 1)});
  }
}

Tensor rms_norm(const Tensor& x, const Tensor& weight) {
  return x / (x.square().mean(-1, true) + 1e-5).sqrt() * weight;
}

TEST(RmsNorm, WholeAndOnSplitTokens_IsTheFormula) {
  for (const Placement& input :
       {Placement(Replicate{}), Placement(Shard{0}), Placement(Shard{1})}) {
    expect_equals_unsplit(
        {.make = [] { return std::make_unique<RmsNorm>(6, 1e-5); },
         .plan = {},
         .reference = [](const Weights& w, const Tensor& x) { return rms_norm(x, w.at("weight")); },
         .x = numbers({2, 3, 6}, 1),
         .input = input});
  }
}

TEST(RmsNorm, Offset_IsAddedToTheWeightWhichStartsLowerByIt) {
  expect_equals_unsplit(
      {.make = [] { return std::make_unique<RmsNorm>(6, 1e-5, 1); },
       .plan = {},
       .reference = [](const Weights& w,
                       const Tensor& x) { return rms_norm(x, w.at("weight") + 1); },
       .x = numbers({2, 3, 6}, 1)});
  RmsNorm norm(6, 1e-5, 1);
  materialize(norm);
  EXPECT_TRUE(at::equal(norm.own_parameters().front()->leaf().detach(), at::zeros({6})));
}

// The first number is 1.9925 times 1.00386: 2.0 in bf16. With 1 + weight rounded to bf16, which is
// 1, it would be 1.9922.
TEST(RmsNorm, OffsetIn16Bits_IsAddedInFp32) {
  const Tensor x = at::tensor({1.0, 0.05, 0.05, 0.05}).to(at::kBFloat16).view({1, 4});
  const Tensor weight = at::full({4}, 0.00386, at::kBFloat16);
  for (const char* plain : {"", "norm"}) {
    set_plain_kernels(plain);
    EXPECT_EQ(cleave::rms_norm(x, weight, 0, 1)[0][0].item<double>(), 2) << plain;
  }
  set_plain_kernels("");
}

TEST(RmsNorm, WeightOfAnotherWidth_IsRefused) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    EXPECT_THROW(cleave::rms_norm(at::ones({2, 64}, type), at::ones({32}, type), 1e-5), c10::Error)
        << type;
  }
}

// Oracle: libtorch's rules of broadcasting.
TEST(Gated, GateOfOneColumn_IsBroadcast) {
  const Tensor gate = numbers({2, 3, 1}, 1), up = numbers({2, 3, 20}, 2);
  const Tensor want = gate / (1 + (-gate).exp()) * up;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const Tensor got = gated(Activation::kSilu, gate.to(type), up.to(type));
    ASSERT_EQ(got.sizes(), want.sizes()) << type;
    EXPECT_LE(test::largest_difference(got, want), 1e-6) << type;
  }
}

// In fp32 and bf16 the norm computes the sum, too; with plain kernels and in fp64 it does not.
TEST(Norms, OfASum_ComputeItInOnePass) {
  const auto expect_one_pass = [](Layer& norm, at::ScalarType type, bool is_one_pass) {
    norm.name_tree();
    materialize(norm, {.seed = 1, .dtype = type});
    const Tensor x = numbers({2, 3, 6}, 1).to(type).requires_grad_();
    const DTensor sum = DTensor(x, Axis(), Replicate{}) + DTensor(2 * x, Axis(), Replicate{});
    const Tensor y = norm(sum, {}).local();
    const auto node = sum.local().grad_fn();
    EXPECT_EQ(node == y.grad_fn(), is_one_pass) << type;
    EXPECT_TRUE(at::equal(sum.local(), x + 2 * x));
  };
  for (const char* plain : {"", "norm"}) {
    set_plain_kernels(plain);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      RmsNorm rms(6, 1e-5);
      LayerNorm layer(6, 1e-5);
      const bool is_one_pass = *plain == 0 && type != at::kDouble;
      expect_one_pass(rms, type, is_one_pass);
      expect_one_pass(layer, type, is_one_pass);
    }
  }
  set_plain_kernels("");
}

TEST(LayerNorm, WholeAndOnSplitTokens_IsTheFormula) {
  for (const Placement& input :
       {Placement(Replicate{}), Placement(Shard{0}), Placement(Shard{1})}) {
    expect_equals_unsplit({.make = [] { return std::make_unique<LayerNorm>(6, 1e-5); },
                           .plan = {},
                           .reference =
                               [](const Weights& w, const Tensor& x) {
                                 const Tensor centred = x - x.mean(-1, true);
                                 const Tensor variance = centred.square().mean(-1, true);
                                 return centred / (variance + 1e-5).sqrt() * w.at("weight") +
                                        w.at("bias");
                               },
                           .x = numbers({2, 3, 6}, 1),
                           .input = input});
  }
}

Tensor plain_activation(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::kSilu:
      return x * x.sigmoid();
    case Activation::kGelu:
      return 0.5 * x * (1 + (x / std::sqrt(2.0)).erf());
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + (std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))).tanh());
    case Activation::kRelu:
      return x.clamp_min(0);
  }
  return {};
}

LayerCase mlp_case(const MlpOptions& options) {
  return {
      .make = [options] { return std::make_unique<Mlp>(options); },
      .plan = {{options.gated ? "{gate,up}_proj" : "up_proj", Colwise{}}, {"down_proj", Rowwise{}}},
      .reference =
          [options](const Weights& w, const Tensor& x) {
            const auto linear = [&](const std::string& name, const Tensor& in) {
              const Tensor y = in.matmul(w.at(name + ".weight").t());
              return options.bias ? y + w.at(name + ".bias") : y;
            };
            const Tensor up = linear("up_proj", x);
            const Tensor inner =
                options.gated ? plain_activation(options.activation, linear("gate_proj", x)) * up
                              : plain_activation(options.activation, up);
            return linear("down_proj", inner);
          },
      .x = numbers({2, 3, 4}, 1)};
}

TEST(Mlp, GatedAndPlain_EqualsTheUnsplitLayer) {
  for (const bool gated : {false, true}) {
    for (const bool bias : {false, true}) {
      expect_equals_unsplit(
          mlp_case({.hidden = 4, .intermediate = 7, .bias = bias, .gated = gated}));
    }
  }
  expect_equals_unsplit(mlp_case({.hidden = 4, .intermediate = 2}));  // ranks without a column
}

TEST(Mlp, EveryActivation_IsItsFormula) {
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    const Tensor x = numbers({50}, 4) * 3;
    EXPECT_LE(test::largest_difference(activate(activation, x), plain_activation(activation, x)),
              1e-14);
    expect_equals_unsplit(
        mlp_case({.hidden = 4, .intermediate = 5, .gated = false, .activation = activation}));
  }
}

/// x + mlp(norm(x)), as a model writes it.
class Block : public Layer {
 public:
  Block() : norm_(4, 1e-5), mlp_({.hidden = 4, .intermediate = 7, .bias = true}) {
    add("norm", norm_);
    add("mlp", mlp_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    return x + mlp_(norm_(x, context), context);
  }

 private:
  RmsNorm norm_;
  Mlp mlp_;
};

// The norm and down_proj's bias are in no plan entry, but their gradients are sums over the ranks'
// tokens. With 3 tokens on 4 ranks, one rank has none.
TEST(SequenceParallel, BlockOnSplitTokens_EqualsTheUnsplitLayer) {
  const LayerCase mlp = mlp_case({.hidden = 4, .intermediate = 7, .bias = true});
  expect_equals_unsplit({.make = [] { return std::make_unique<Block>(); },
                         .plan = {{"mlp.{gate,up}_proj", Colwise{.input = Shard{1}}},
                                  {"mlp.down_proj", Rowwise{.output = Shard{1}}}},
                         .reference =
                             [mlp](const Weights& w, const Tensor& x) {
                               Weights inner;
                               for (const auto& [name, tensor] : w) {
                                 if (name.starts_with("mlp."))
                                   inner.emplace(name.substr(4), tensor);
                               }
                               return x + mlp.reference(inner, rms_norm(x, w.at("norm.weight")));
                             },
                         .x = numbers({2, 3, 4}, 1),
                         .input = Shard{1}});
}

}  // namespace
}  // namespace cleave::layers_test
