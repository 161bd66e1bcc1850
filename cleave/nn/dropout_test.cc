#include "cleave/nn/dropout.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/philox.h"
#include "cleave/runtime/kernel_switches.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: element i of the step's global batch is kept if number i of the stream is >= p.
namespace cleave::dropout_test {
namespace {

using test::leaf_of;
using test::numbers;
using test::on_ranks;
using test::thrown_by;

constexpr double kP = 0.3;

Context training(int64_t first_sample = 0) {
  Context c;
  c.training = true;
  c.seed = 5;
  c.step = 9;
  c.first_sample = first_sample;
  return c;
}

/// Mask of a batch [rows, 3, 5] that begins with the step's first sample.
Tensor whole_mask(int64_t rows, const std::string& stream) {
  std::vector<float> u(static_cast<size_t>(rows * 15));
  fill_uniform(stream_key(5, "dropout " + stream), 9, 0, u);
  const Tensor uniform = at::tensor(u, at::kFloat).view({rows, 3, 5});
  return at::where(uniform.lt(kP), at::scalar_tensor(0.0, at::kDouble),
                   at::scalar_tensor(1 / (1 - kP), at::kDouble));
}

TEST(Dropout, MaskOnEveryLayout_IsTheSameBits) {
  const Tensor want = whole_mask(4, "here");
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      const Tensor whole = at::zeros({4, 3, 5}, at::kDouble);
      const SplitPtr swapped = Split::intern(5, [&] {  // last columns first, in two ranges
        std::vector<std::vector<Range>> r(static_cast<size_t>(tp));
        r.front() = {{0, 1}, {3, 5}};
        r.back().insert(r.back().begin() + (tp == 1 ? 1 : 0), {1, 3});
        return r;
      }());
      for (const Placement& p : {Placement(Replicate{}), Placement(Shard{0}), Placement(Shard{1}),
                                 Placement(Shard{2}), Placement(Shard{2, swapped})}) {
        const DTensor x = DTensor::distribute(whole, axis, p);
        const Tensor mask = dropout_mask(x, kP, "here", training());
        EXPECT_TRUE(at::equal(x.with(mask).full_tensor(), want)) << p.describe() << " tp=" << tp;
      }
      EXPECT_TRUE(
          at::equal(dropout_mask(DTensor(whole, axis, Fanout{}), kP, "here", training()), want));
    });
  }
}

TEST(Dropout, SequencesOfADataParallelRank_GetTheirPartOfTheBatchsMask) {
  const Tensor want = whole_mask(7, "here");
  int64_t begin = 0;
  for (const int64_t rows : {3, 1, 3}) {
    on_ranks(2, [&](const Axis& axis) {
      const DTensor x = DTensor::distribute(at::zeros({rows, 3, 5}, at::kDouble), axis, Shard{1});
      const Tensor mask = dropout_mask(x, kP, "here", training(begin));
      EXPECT_TRUE(at::equal(x.with(mask).full_tensor(), want.narrow(0, begin, rows)));
    });
    begin += rows;
  }
}

/// Calls one dropout several times, in a layer of its own or not.
class Calls : public Layer {
 public:
  explicit Calls(bool is_nested) : inner_(is_nested ? std::make_unique<Calls>(false) : nullptr) {
    add("dropout", dropout_);
    if (inner_) add("inner", *inner_);
  }
  std::vector<Tensor> masks;

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    for (int call = 0; call < 3; ++call) {
      if (inner_) (void)(*inner_)(x, context);
      masks.push_back(dropout_(x, context).local());
    }
    if (inner_) masks.insert(masks.end(), inner_->masks.begin(), inner_->masks.end());
    return x;
  }

 private:
  Dropout dropout_{kP};
  std::unique_ptr<Calls> inner_;
};

// Oracle: two independent masks keep an element both with probability 0.7^2. Of 2^14 elements 5
// standard deviations are 0.02.
TEST(Dropout, CalledSeveralTimesByALayer_DrawsIndependentMasks) {
  const DTensor ones(at::ones({128, 128}, at::kDouble), Axis(), Replicate{});
  std::vector<Tensor> before;
  for (int pass = 0; pass < 2; ++pass) {
    Calls calls(true);
    calls.name_tree();
    (void)calls(ones, training());
    ASSERT_EQ(calls.masks.size(), 12U);
    for (size_t i = 0; i < calls.masks.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        const Tensor both = calls.masks[i].gt(0).logical_and(calls.masks[k].gt(0));
        EXPECT_NEAR(both.to(at::kDouble).mean().item<double>(), (1 - kP) * (1 - kP), 0.02)
            << i << " " << k;
      }
      EXPECT_TRUE(pass == 0 || calls.masks[i].equal(before[i])) << i;
    }
    before = calls.masks;
  }
  Calls evaluated(false);
  evaluated.name_tree();
  (void)evaluated(ones, Context());
  for (const Tensor& y : evaluated.masks) EXPECT_TRUE(y.equal(ones.local()));
}

TEST(Dropout, OtherSeedStepOrStream_GivesAnotherMask) {
  const DTensor x(at::zeros({64, 16}, at::kDouble), Axis(), Replicate{});
  const Tensor base = dropout_mask(x, kP, "a", training());
  Context seed = training(), step = training();
  seed.seed = 6;
  step.step = 10;
  // Independent masks differ in 2 p (1 - p) = 42 % of 1,024 elements, with a deviation of 1.5 %.
  for (const Tensor& other : {dropout_mask(x, kP, "b", training()), dropout_mask(x, kP, "a", seed),
                              dropout_mask(x, kP, "a", step)}) {
    const double differ = base.ne(other).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(differ, 2 * kP * (1 - kP), 5 * 0.0155);
  }
}

TEST(Dropout, Rate_IsP) {
  const int64_t n = 100000;
  const DTensor x(at::zeros({n}, at::kDouble), Axis(), Replicate{});
  for (const double p : {0.1, 0.5, 0.9}) {
    const Tensor mask = dropout_mask(x, p, "a", training());
    const double dropped = mask.eq(0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(dropped, p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(n)));
    EXPECT_DOUBLE_EQ(mask.max().item<double>(), 1 / (1 - p));
  }
}

TEST(Dropout, Layer_MultipliesValueAndGradientWhileTraining) {
  class Root : public Layer {
   public:
    Root() : drop_(kP) { add("drop", drop_); }

   protected:
    DTensor forward(const DTensor& x, const Context& c) override { return drop_(x, c); }
    Dropout drop_;
  };
  Root root;
  root.name_tree();
  for (const char* plain : {"", "random"}) {
    set_plain_kernels(plain);
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensor x = leaf_of(numbers({4, 3, 5}, 1).to(type));
      const Tensor upstream = numbers({4, 3, 5}, 2).to(type);
      const Tensor mask = whole_mask(4, "drop").to(type);
      const DTensor y = root(DTensor(x, Axis(), Replicate{}), training());
      EXPECT_TRUE(at::equal(y.local(), x * mask)) << type << ' ' << plain;
      (y.local() * upstream).sum().backward();
      EXPECT_TRUE(at::equal(x.grad(), upstream * mask)) << type << ' ' << plain;
      EXPECT_TRUE(at::equal(root(DTensor(x, Axis(), Replicate{}), {}).local(), x));
    }
  }
  set_plain_kernels("");
}

TEST(Dropout, OfPartialSumsOrAWrongP_IsRefused) {
  on_ranks(2, [](const Axis& axis) {
    Dropout drop(kP);
    const DTensor sums(at::zeros({2, 2}), axis, Partial{}, maker_name("down_proj"));
    const Error error = thrown_by([&] { drop(sums, training()); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("made by down_proj"), std::string::npos);
    EXPECT_NO_THROW(drop(sums, {}));
  });
  for (const double p : {-0.1, 1.0, std::nan("")}) {
    EXPECT_EQ(thrown_by([&] { Dropout drop(p); }).code(), Code::kUsage);
  }
}

}  // namespace
}  // namespace cleave::dropout_test
