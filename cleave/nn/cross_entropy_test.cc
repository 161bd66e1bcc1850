#include "cleave/nn/cross_entropy.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/counting_group.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracles: recorded values of torch.nn.functional.cross_entropy, and in fp64 libtorch's own loss on
// whole logits.
namespace cleave::cross_entropy_test {
namespace {

using test::largest_difference;
using test::leaf_of;
using test::numbers;
using test::on_ranks;
using test::thrown_by;
using Options = CrossEntropyOptions;
using Reduction = Options::Reduction;
using Smoothing = Options::Smoothing;

constexpr double kFp32 = std::numeric_limits<float>::epsilon();

struct Loss {
  Tensor value, gradient;  // of the whole logits
};

/// Loss and gradient, under upstream gradient `upstream`, of whole logits distributed as Shard(-1).
Loss sharded_loss(const Tensor& logits, const Tensor& labels, const Options& options,
                  const Tensor& upstream, const Axis& axis) {
  const Tensor leaf = leaf_of(logits);
  const DTensor placed = DTensor::distribute(leaf, axis, Shard{-1});
  const DTensor loss = cross_entropy(placed, labels, options);
  EXPECT_TRUE(loss.placement().is_replicate());
  (loss.local() * upstream).sum().backward();
  return {loss.local().detach(), leaf.grad()};
}

class GoldenLoss : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, GoldenLoss,
                         ::testing::Values("v16", "v24", "v37", "v16_big", "v24_big", "v37_big"));

// The recorded values are fp32 too. A loss is a difference of numbers up to its own size and a
// logarithm, so it has a few roundings of that size. A gradient is at most 1 before `upstream`.
void expect_golden(const std::map<std::string, Tensor>& golden, const std::string& name,
                   const std::string& kind, const Axis& axis) {
  const std::string prefix = name + "." + kind;
  const bool ignored = kind.starts_with("ignore");
  const Tensor labels = golden.at(name + (ignored ? ".labels_ignore" : ".labels"));
  const Tensor logits = golden.at(name + ".logits"), upstream = golden.at(name + ".upstream");
  Options options{.reduction = Reduction::kNone};
  if (kind.find("ls0.1") != std::string::npos) options.label_smoothing = 0.1;
  if (kind.ends_with("kminus1")) options.smoothing = Smoothing::kNemo;
  const std::string what = str(prefix, " tp=", axis.size());

  const Tensor want = golden.at(prefix + ".loss_per_token");
  const Loss each = sharded_loss(logits, labels, options, upstream, axis);
  const double size = 1 + want.abs().max().item<double>();
  EXPECT_LE(largest_difference(each.value, want), 8 * kFp32 * size) << what;
  const double most = 1 + upstream.abs().max().item<double>();
  EXPECT_LE(largest_difference(each.gradient, golden.at(prefix + ".grad_upstream")),
            8 * kFp32 * most)
      << what;
  if (!golden.contains(prefix + ".loss_mean")) return;
  options.reduction = Reduction::kMean;
  const Loss mean = sharded_loss(logits, labels, options, at::ones({}), axis);
  EXPECT_NEAR(mean.value.item<float>(), golden.at(prefix + ".loss_mean").item<float>(),
              8 * kFp32 * size)
      << what;
  EXPECT_LE(largest_difference(mean.gradient, golden.at(prefix + ".grad_mean")), 8 * kFp32) << what;
}

TEST_P(GoldenLoss, EveryKind_EqualsTorchsWholeAndSharded) {
  const auto golden = test::golden_cross_entropy();
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      for (const std::string set : {"all", "ignore"}) {
        for (const char* kind : {".ls0.0", ".ls0.1", ".ls0.1.kminus1"}) {
          expect_golden(golden, GetParam(), set + kind, axis);
        }
      }
    });
  }
}

/// libtorch's loss on whole fp64 logits; NeMo's smoothing is torch's at s = a V / (V - 1).
Tensor whole_loss(const Tensor& logits, const Tensor& labels, const Options& o) {
  const auto V = static_cast<double>(logits.size(-1));
  const double s =
      o.smoothing == Smoothing::kNemo ? o.label_smoothing * V / (V - 1) : o.label_smoothing;
  const Tensor flat = logits.flatten(0, -2);
  const Tensor log_p = flat - flat.logsumexp(-1, true);
  const Tensor valid = labels.flatten().ne(o.ignore_index);
  const Tensor target = labels.flatten().masked_fill(valid.logical_not(), 0).unsqueeze(-1);
  const Tensor nll = -log_p.gather(-1, target).squeeze(-1);
  const Tensor loss = ((1 - s) * nll - s * log_p.mean(-1)) * valid;
  if (o.reduction == Reduction::kNone) return loss.view(labels.sizes());
  if (o.reduction == Reduction::kSum) return loss.sum();
  return loss.sum() / (o.valid_tokens > 0 ? at::scalar_tensor(o.valid_tokens) : valid.sum());
}

TEST(CrossEntropy, UnevenAndTinyVocabularies_EqualTheWholeLoss) {
  for (const int64_t vocabulary : {7, 5, 3, 2}) {  // 3 and 2: ranks without a class
    const Tensor logits = 3 * numbers({2, 4, vocabulary}, 1);
    const Tensor labels = test::ids({2, 4}, vocabulary, 2);
    labels[0][1] = -100;
    for (const auto reduction : {Reduction::kNone, Reduction::kSum, Reduction::kMean}) {
      for (const auto smoothing : {Smoothing::kTorch, Smoothing::kNemo}) {
        for (const double amount : {0.0, 0.3, 1.0}) {
          const Options o{
              .reduction = reduction, .label_smoothing = amount, .smoothing = smoothing};
          const Tensor leaf = leaf_of(logits);
          const Tensor want = whole_loss(leaf, labels, o);
          const Tensor upstream = numbers(want.sizes(), 3);
          (want * upstream).sum().backward();
          for (const int tp : {1, 2, 3, 4}) {
            on_ranks(tp, [&](const Axis& axis) {
              const Loss got = sharded_loss(logits, labels, o, upstream, axis);
              EXPECT_LE(largest_difference(got.value, want), 1e-13) << vocabulary << " " << tp;
              EXPECT_LE(largest_difference(got.gradient, leaf.grad()), 1e-14)
                  << vocabulary << " " << tp;
            });
          }
        }
      }
    }
  }
}

TEST(CrossEntropy, OtherIgnoreIndexAndGlobalCount_AreFollowed) {
  const Tensor logits = numbers({6, 5}, 1);
  const Tensor labels = at::tensor({0, 4, 1, 1, 3, 2}, at::kLong);
  const Options o{.ignore_index = 1, .valid_tokens = 40};
  const Tensor leaf = leaf_of(logits);
  const Tensor want = whole_loss(leaf, labels, o);
  want.backward();
  on_ranks(2, [&](const Axis& axis) {
    const Loss got = sharded_loss(logits, labels, o, at::ones({}, at::kDouble), axis);
    EXPECT_NEAR(got.value.item<double>(), want.item<double>(), 1e-15);
    EXPECT_LE(largest_difference(got.gradient, leaf.grad()), 1e-16);
  });
}

// As in PyTorch: the mean of no losses is NaN, and its gradient zero.
TEST(CrossEntropy, NoLabels_GiveAGradientOfZeros) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    on_ranks(2, [&](const Axis& axis) {
      const Loss got = sharded_loss(numbers({4, 6}, 1).to(type), at::full({4}, -100, at::kLong), {},
                                    at::ones({}, at::kDouble), axis);
      EXPECT_TRUE(got.value.isnan().item<bool>()) << type;
      EXPECT_EQ(got.gradient.abs().sum().item<double>(), 0) << type;
    });
  }
}

// Padding classes have logits of -inf, and positions without a label may have any logits.
TEST(CrossEntropy, InfiniteLogitsThatDoNotCount_LeaveTheRestFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor logits = numbers({4, 6}, 1);
  logits.select(1, 5).fill_(-infinity);
  logits.select(1, 2).fill_(-infinity);  // the first class of rank 1 of 3
  logits[3].fill_(infinity);
  const Tensor labels = at::tensor({0, 3, 4, -100}, at::kLong);
  const Options o{.reduction = Reduction::kNone};
  const Tensor real = logits.narrow(0, 0, 3), counted = labels.narrow(0, 0, 3);
  for (const int tp : {1, 2, 3}) {
    on_ranks(tp, [&](const Axis& axis) {
      const Loss got = sharded_loss(logits, labels, o, at::ones({4}, at::kDouble), axis);
      EXPECT_LE(
          largest_difference(got.value.narrow(0, 0, 3),
                             real.logsumexp(-1) - real.gather(1, counted.unsqueeze(1)).squeeze(1)),
          1e-14);
      EXPECT_EQ(got.value[3].item<double>(), 0);
      EXPECT_TRUE(got.gradient.isfinite().all().item<bool>()) << "tp=" << tp;
      EXPECT_EQ(got.gradient[3].abs().sum().item<double>(), 0);
    });
  }
}

// The last rank of a padded vocabulary may hold nothing but padding classes.
TEST(CrossEntropy, RankWithOnlyPaddingClasses_AddsNothing) {
  constexpr int64_t kClasses = 60, kReal = 37;  // rank 2 of 3 has 40 to 59
  const Tensor labels = at::tensor({0, 36, 20, -100}, at::kLong);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Tensor logits = numbers({4, kClasses}, 1).to(type);
    logits.narrow(1, kReal, kClasses - kReal).fill_(-std::numeric_limits<double>::infinity());
    const Tensor real = leaf_of(logits.narrow(1, 0, kReal).to(at::kDouble));
    const Tensor want = whole_loss(real, labels, {});
    want.backward();
    const Tensor gradient = at::constant_pad_nd(real.grad(), {0, kClasses - kReal});
    // A gradient is at most 1, and rounded to the logits' type.
    const double bound = type == at::kBFloat16 ? 1.0 / 256 : 8 * kFp32;
    for (const int tp : {1, 2, 3}) {
      on_ranks(tp, [&](const Axis& axis) {
        const Loss got = sharded_loss(logits, labels, {}, at::ones({}), axis);
        EXPECT_NEAR(got.value.item<double>(), want.item<double>(), 32 * kFp32)
            << type << " tp=" << tp;
        EXPECT_LE(largest_difference(got.gradient, gradient), bound) << type << " tp=" << tp;
      });
    }
  }
}

TEST(CrossEntropy, Bf16Logits_AreSummedInFp32AndKeepTheirType) {
  const Tensor logits = numbers({8, 9}, 1).to(at::kBFloat16);
  const Tensor labels = test::ids({8}, 9, 2);
  const Tensor want = whole_loss(logits.to(at::kDouble), labels, {});
  on_ranks(2, [&](const Axis& axis) {
    const Tensor leaf = leaf_of(logits);
    const Tensor before = leaf.detach().clone();
    const DTensor loss = cross_entropy(DTensor::distribute(leaf, axis, Shard{-1}), labels);
    EXPECT_EQ(loss.local().scalar_type(), at::kFloat);
    EXPECT_NEAR(loss.local().item<double>(), want.item<double>(), 8 * kFp32 * 4);
    loss.local().backward();
    EXPECT_EQ(leaf.grad().scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(leaf, before)) << "the logits were changed";
  });
}

TEST(CrossEntropy, ShardedLogits_NeedTwoAllReducesAndNoGather) {
  on_ranks(3, [](const Axis& inner) {
    const auto group = std::make_shared<test::CountingGroup>(inner.group());
    const Axis axis(group);
    const SplitPtr split = Split::balanced(7, 3);
    const Tensor leaf = leaf_of(numbers({4, split->width(axis.rank())}, 1));
    const DTensor loss = cross_entropy(DTensor(leaf, axis, Shard{-1, split}),
                                       at::zeros({4}, at::kLong), {.label_smoothing = 0.1});
    loss.local().backward();
    EXPECT_EQ(group->taken(), (std::map<std::string, int>{{"all_reduce", 2}}));
  });
}

TEST(CrossEntropy, ShardOfSeveralRangesInOrder_CountsAllClassesOfARank) {
  const Tensor logits = numbers({4, 6}, 1);
  const Tensor labels = at::tensor({0, 2, 3, 5}, at::kLong);
  const Tensor want = whole_loss(logits, labels, {});
  on_ranks(3, [&](const Axis& axis) {
    const SplitPtr split = Split::intern(6, {{{0, 2}, {2, 4}}, {}, {{4, 6}}});
    const DTensor placed = DTensor::distribute(logits, axis, Shard{1, split});
    EXPECT_NEAR(cross_entropy(placed, labels).local().item<double>(), want.item<double>(), 1e-14);
  });
}

TEST(CrossEntropy, WrongArguments_AreRefused) {
  on_ranks(2, [](const Axis& axis) {
    const Tensor whole = at::zeros({2, 3, 6});
    const DTensor logits = DTensor::distribute(whole, axis, Shard{-1});
    const Tensor labels = at::zeros({2, 3}, at::kLong);
    for (const int64_t label : {6, -1}) {
      const Tensor wrong = labels.clone();
      wrong[1][2] = label;
      const Error error = thrown_by([&] { (void)cross_entropy(logits, wrong); });
      EXPECT_EQ(error.code(), Code::kShape);
      EXPECT_NE(std::string(error.what()).find(str("label ", label, " is outside [0, 6)")),
                std::string::npos);
    }
    for (const double smoothing : {-0.1, 1.1, std::nan("")}) {
      const Error error =
          thrown_by([&] { (void)cross_entropy(logits, labels, {.label_smoothing = smoothing}); });
      EXPECT_EQ(error.code(), Code::kUsage);
    }
    const Error type = thrown_by([&] { (void)cross_entropy(logits, labels.to(at::kInt)); });
    EXPECT_EQ(type.code(), Code::kShape);
    EXPECT_STREQ(type.what(), "labels have type Int; expected int64: labels.to(at::kLong)");
    EXPECT_EQ(thrown_by([&] {
                (void)cross_entropy(logits, at::zeros({2, 2}, at::kLong));
              }).code(),
              Code::kShape);
    const DTensor on_tokens =
        DTensor::distribute(whole, axis, Shard{1}).made_by(maker_name("lm_head"));
    const Tensor own = at::zeros({2, on_tokens.local().size(1)}, at::kLong);
    for (const Tensor& of_tokens : {own, labels}) {
      const Error layout = thrown_by([&] { (void)cross_entropy(on_tokens, of_tokens); });
      EXPECT_EQ(layout.code(), Code::kShape);
      EXPECT_NE(std::string(layout.what()).find("Shard(1) made by lm_head"), std::string::npos);
    }
    const DTensor number = DTensor(at::zeros({}), axis, Replicate{}).made_by(maker_name("lm_head"));
    const Error loss = thrown_by([&] { (void)cross_entropy(number, labels); });
    EXPECT_EQ(loss.code(), Code::kShape);
    EXPECT_NE(std::string(loss.what()).find("one number, made by lm_head"), std::string::npos);
    const DTensor sums(whole, axis, Partial{});
    EXPECT_EQ(thrown_by([&] { (void)cross_entropy(sums, labels); }).code(), Code::kShape);
  });
}

TEST(NextTokenLabels, EachPosition_GetsTheNextLabelAndTheLastNone) {
  const Tensor labels = at::tensor({1, 2, 3, 4, -100, 6}, at::kLong).view({2, 3});
  EXPECT_TRUE(at::equal(next_token_labels(labels),
                        at::tensor({2, 3, -100, -100, 6, -100}, at::kLong).view({2, 3})));
  EXPECT_TRUE(
      at::equal(next_token_labels(labels.narrow(1, 0, 1)), at::full({2, 1}, -100, at::kLong)));
}

}  // namespace
}  // namespace cleave::cross_entropy_test
