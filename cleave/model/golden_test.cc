#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "cleave/runtime/kernel_switches.h"
#include "tests/support/golden_model.h"
#include "tests/support/rounding.h"

namespace cleave::golden_test {
namespace {

using test::GoldenLayout;
using test::largest_difference;

class CausalGolden : public test::GoldenModel {
 protected:
  [[nodiscard]] test::GoldenRows rows_of(const std::string& prefix) const override {
    const Tensor& labels = golden_.at(prefix + "labels");
    const Tensor targets = next_token_labels(labels.flatten(0, -2)).view_as(labels);
    return {.ids = golden_.at(prefix + "input_ids"), .targets = targets, .mask = {}, .types = {}};
  }
};

TEST_P(CausalGolden, ForwardAndBackward_GiveLogitsLossAndEveryGradient) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const auto [logits, loss] = pass(*model, mesh, rows_of("input."));
    EXPECT_LE(largest_difference(logits, own(golden_.at("logits"), mesh["dp"])), 5e-5);
    EXPECT_NEAR(loss, golden_.at("loss").item<float>(), 1e-5);
    expect_gradients(*model, "grad");
  });
}

TEST_P(CausalGolden, SequencesOfUnequalLength_GiveTheirLogitsLossAndGradients) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const auto [logits, loss] = pass(*model, mesh, rows_of("pad.input."));
    const Tensor real = own(golden_.at("pad.input.labels"), mesh["dp"]).ne(-100);
    expect_padded_logits(logits, real, mesh["dp"]);
    EXPECT_NEAR(loss, golden_.at("pad.loss").item<float>(), 1e-5);
    expect_gradients(*model, "pad.grad");
  });
}

TEST_P(CausalGolden, ThreeAdamWSteps_GiveLossesNormsAndWeights) {
  expect_three_steps("adamw", test::kGoldenAdamW, 1e-3, 0);
}

/// The goldens with a batch that has the pad id among the real ids.
class PadIdGolden : public CausalGolden {};

TEST_P(PadIdGolden, PadIdAmongTheIds_GetsNoGradientFromTheLookUp) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const double loss = pass(*model, mesh, rows_of("padid.input.")).second;
    EXPECT_NEAR(loss, golden_.at("padid.loss").item<float>(), 1e-5);
    expect_gradients(*model, "padid.grad");
  });
}

/// The goldens with clipped training steps.
class ClippedGolden : public CausalGolden {};

TEST_P(ClippedGolden, ThreeClippedSteps_GiveLossesNormsAndWeights) {
  expect_three_steps("clip", test::kGoldenAdamW, 1e-3, 0.1);
}

/// The golden with training steps of plain Adam.
class AdamGolden : public CausalGolden {};

TEST_P(AdamGolden, ThreeAdamSteps_GiveLossesNormsAndWeights) {
  expect_three_steps("adam", {.kind = OptimizerOptions::Kind::kAdam, .eps = 1e-6}, 1e-3, 0);
}

std::vector<GoldenLayout> layouts_of(const std::vector<std::string>& goldens) {
  std::vector<GoldenLayout> out;
  for (const std::string& golden : goldens) {
    for (const int tp : {1, 2, 3, 4}) out.push_back({.golden = golden, .tp = tp});
    out.push_back({.golden = golden, .dp = 2});
    out.push_back({.golden = golden, .tp = 2, .dp = 2});
    for (const int tp : {2, 3, 4}) {
      out.push_back({.golden = golden, .tp = tp, .sequence_parallel = true});
    }
    out.push_back({.golden = golden, .tp = 2, .dp = 2, .sequence_parallel = true});
  }
  return out;
}

/// The goldens with weights in bf16, on all layouts.
class Bf16Golden : public CausalGolden {
 protected:
  /// The largest distances of a layout's logits and loss from transformers' in fp32.
  std::pair<double, double> errors_on(const GoldenLayout& layout) {
    layout_ = layout;
    std::pair<double, double> worst{0, 0};
    std::mutex mutex;
    on_ranks([&](const Mesh& mesh) {
      auto model = model_on(mesh["tp"], at::kBFloat16);
      const auto [logits, loss] = pass(*model, mesh, rows_of("input."));
      const double error = largest_difference(logits, own(golden_.at("logits"), mesh["dp"]));
      EXPECT_TRUE(std::isfinite(error));
      const std::lock_guard lock(mutex);
      worst.first = std::max(worst.first, error);
      worst.second = std::max(worst.second, std::abs(loss - golden_.at("loss").item<float>()));
    });
    return worst;
  }
};

// Gradients and weights in bf16 are in cleave/train/golden_layouts_test.cc.
TEST_P(Bf16Golden, LogitsAndLoss_AreAsNearToTransformersAsOneRankOfLibtorch) {
  set_plain_kernels("all");
  const auto [plain_logits, plain_loss] = errors_on(GetParam());
  set_plain_kernels("");
  const double unit = test::unit_roundoff(at::kBFloat16);
  const double largest = golden_.at("logits").abs().max().item<double>();
  const double loss = golden_.at("loss").item<float>();
  const double logits_bound = test::rounding_bound(plain_logits, unit * largest);
  const double loss_bound = test::rounding_bound(plain_loss, unit * loss);
  EXPECT_LT(logits_bound, largest / 3);
  EXPECT_LT(loss_bound, loss / 10);
  for (const GoldenLayout& layout : layouts_of({GetParam().golden})) {
    const auto [logits_error, loss_error] = errors_on(layout);
    EXPECT_LE(logits_error, logits_bound) << layout.tp << layout.dp << layout.sequence_parallel;
    EXPECT_LE(loss_error, loss_bound) << layout.tp << layout.dp << layout.sequence_parallel;
  }
}

std::vector<GoldenLayout> one_rank_of(const std::vector<std::string>& goldens) {
  std::vector<GoldenLayout> out;
  for (const std::string& golden : goldens) out.push_back({.golden = golden});
  return out;
}

const std::vector<std::string> kLlamas{"llama-mha", "llama-6heads", "llama-gqa-tied",
                                       "llama-gqa-llama3rope"};
const std::vector<std::string> kGpt2s{"gpt2", "gpt2-4layers", "gpt2-6heads"};
const std::vector<std::string> kDecoders{"qwen2",  "qwen3",  "mistral",      "smollm3",
                                         "olmo2",  "olmo3",  "phi3",         "phi3-long",
                                         "gemma2", "gemma3", "gemma3-untied"};
const std::vector<std::string> kExperts{"qwen3-moe", "mixtral"};

INSTANTIATE_TEST_SUITE_P(Llama, CausalGolden, ::testing::ValuesIn(layouts_of(kLlamas)),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Gpt2, CausalGolden, ::testing::ValuesIn(layouts_of(kGpt2s)),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Decoders, CausalGolden, ::testing::ValuesIn(layouts_of(kDecoders)),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Experts, CausalGolden, ::testing::ValuesIn(layouts_of(kExperts)),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Llama, Bf16Golden, ::testing::ValuesIn(one_rank_of(kLlamas)),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Gpt2, Bf16Golden, ::testing::ValuesIn(one_rank_of(kGpt2s)),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Decoders, Bf16Golden, ::testing::ValuesIn(one_rank_of(kDecoders)),
                         test::layout_name);
// bf16 does not change the choice of experts: make_models.py checks its margin.
INSTANTIATE_TEST_SUITE_P(Experts, Bf16Golden, ::testing::ValuesIn(one_rank_of(kExperts)),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Layouts, PadIdGolden,
                         ::testing::ValuesIn(layouts_of({"llama-mha", "llama-gqa-tied"})),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Layouts, ClippedGolden,
                         ::testing::ValuesIn(layouts_of({"llama-mha", "gpt2"})), test::layout_name);
INSTANTIATE_TEST_SUITE_P(Layouts, AdamGolden, ::testing::ValuesIn(layouts_of({"gpt2"})),
                         test::layout_name);

}  // namespace
}  // namespace cleave::golden_test
