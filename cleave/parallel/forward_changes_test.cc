#include "cleave/parallel/forward_changes.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/gradient_sync.h"
#include "cleave/parallel/recompute.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: the running mean of inputs that are 4 everywhere. It starts at 0 and moves half of the
// way in each pass: 2, then 3.
namespace cleave::forward_changes_test {
namespace {

using test::thrown_by;
using testing::HasSubstr;

/// x times a weight. Keeps a running mean of x, [3].
class Normalized : public Layer {
 public:
  explicit Normalized(bool changes_in_place) : changes_in_place_(changes_in_place) {
    mean_->freeze(at::kFloat);
    add("scale", scale_);
    add("mean", mean_);
  }
  /// What the docs advise: after the step, the value that forward kept.
  void write_mean() {
    const at::NoGradGuard no_grad;
    mean_->leaf().copy_(mean_->part_of(kept_));
  }
  [[nodiscard]] const Parameter& mean() const { return *mean_; }

 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    {
      const at::NoGradGuard no_grad;
      const Tensor mean = x.local().mean(0);
      if (changes_in_place_) {
        mean_->use().lerp_(mean, 0.5);
      } else {
        kept_ = mean_->use().lerp(mean, 0.5);
      }
    }
    return x.with(x.local() * scale_->use());
  }

 private:
  bool changes_in_place_;
  Tensor kept_;
  std::shared_ptr<Parameter> scale_ = made(1), mean_ = made(0);
  static std::shared_ptr<Parameter> made(double value) {
    return std::make_shared<Parameter>(std::vector<int64_t>{3}, Init::constant(value));
  }
};

enum class Wrapped { kNot, kRecompute, kFsdp, kBoth };

std::unique_ptr<Normalized> made(Wrapped wrapped, bool changes_in_place, const Axis& dp) {
  auto layer = std::make_unique<Normalized>(changes_in_place);
  layer->name_tree();
  if (wrapped == Wrapped::kRecompute || wrapped == Wrapped::kBoth) recompute(*layer);
  if (wrapped == Wrapped::kFsdp || wrapped == Wrapped::kBoth) fully_shard(*layer, dp);
  materialize(*layer);
  return layer;
}

DTensor call(Normalized& layer) {
  return layer(DTensor(at::full({2, 3}, 4.0F), Axis(), Replicate{}), Context());
}

void expect_mean(const Normalized& layer, float value) {
  const Tensor& leaf = layer.mean().leaf();
  EXPECT_TRUE(at::equal(leaf, at::full_like(leaf, value))) << leaf;
}

TEST(ForwardChanges, UnderRecomputeAndFsdp_AreRefused) {
  const std::string begin = "mean is changed in place by the forward of the root layer, which ";
  const std::string end =
      "; keep the new value in the layer, and after the step copy part_of() of it into leaf()";
  test::on_ranks(2, [&](const Axis& dp) {
    for (const Wrapped wrapped : {Wrapped::kRecompute, Wrapped::kFsdp, Wrapped::kBoth}) {
      const auto layer = made(wrapped, true, dp);
      const Error error = thrown_by([&] { call(*layer); });
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_EQ(error.what(), begin +
                                  (wrapped == Wrapped::kFsdp
                                       ? "under FSDP reads a copy that is freed after the call"
                                       : "recompute runs twice") +
                                  end);
    }
  });
}

TEST(ForwardChanges, ThatNothingLosesOrRepeats_AreMade) {
  const auto plain = made(Wrapped::kNot, true, Axis());
  call(*plain).local().sum().backward();
  expect_mean(*plain, 2);
  const auto recomputed = made(Wrapped::kRecompute, true, Axis());
  const at::NoGradGuard no_grad;  // so forward runs once
  call(*recomputed);
  expect_mean(*recomputed, 2);
  call(*recomputed);
  expect_mean(*recomputed, 3);
}

TEST(ForwardChanges, ValueThatIsWrittenAfterTheStep_IsTheRunningMean) {
  test::on_ranks(2, [](const Axis& dp) {
    for (const Wrapped wrapped :
         {Wrapped::kNot, Wrapped::kRecompute, Wrapped::kFsdp, Wrapped::kBoth}) {
      const auto layer = made(wrapped, false, dp);
      for (const float want : {2.0F, 3.0F}) {
        call(*layer).local().sum().backward();
        layer->write_mean();
        expect_mean(*layer, want);
      }
    }
  });
}

}  // namespace
}  // namespace cleave::forward_changes_test
