#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/generate/runnable.h"
#include "cleave/model/model.h"
#include "tests/support/ranks.h"

namespace cleave::rank_weights_test {
namespace {

std::unique_ptr<Model> with_experts() {
  auto model = make_model(preset_config("mixtral-tiny", 40));
  materialize(*model, {.seed = 3, .dtype = at::kFloat});
  return model;
}

Tensor logits_of(Model& model) {
  const at::NoGradGuard no_grad;
  return model(DTensor(test::ids({2, 9}, 40, 5), Axis(), Replicate{}), {}).local();
}

// Oracle: the model before, with the same weights in their original order.
TEST(PrepareWeights, OfExperts_GiveTheSameLogits) {
  const auto model = with_experts();
  const Tensor want = logits_of(*model);
  prepare_weights(*model, WeightForm::kPlain);
  EXPECT_TRUE(at::allclose(logits_of(*model), want, 1e-4, 1e-5));
}

class QuantizedExperts : public testing::TestWithParam<WeightForm> {};

TEST_P(QuantizedExperts, OfAModel_KeepTheRouter) {
  const auto original = with_experts();
  const auto model = with_experts();
  prepare_weights(*model, GetParam());
  const Parameters before = original->parameters(), after = model->parameters();
  for (size_t i = 0; i < after.size(); ++i) {
    const std::string& name = after[i]->name();
    if (name.ends_with(".gate.weight")) {
      EXPECT_TRUE(after[i]->use().equal(before[i]->use())) << name;
    }
    if (name.find(".experts.") != std::string::npos) {
      EXPECT_FALSE(after[i]->is_readable()) << name;
    }
  }
  EXPECT_TRUE(logits_of(*model).isfinite().all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(PrepareWeights, QuantizedExperts,
                         testing::Values(WeightForm::kInt8, WeightForm::kInt4));

}  // namespace
}  // namespace cleave::rank_weights_test
