#include "cleave/verify/fuzz.h"

#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/verify/verify.h"

namespace cleave::fuzz_test {
namespace {

// Expects no differences. These models are correct: their tests compare them with transformers on
// the same layouts.
void expect_no_difference(uint64_t first_seed, at::ScalarType dtype,
                          const std::string& preset = "llama-tiny", uint64_t count = 25) {
  const Json config = preset_config(preset, 257);
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    const FuzzCase fuzz = fuzz_case(config, 4, seed);
    const VerifyReport report = verify_model([&] { return make_model(fuzz.config); },
                                             {.tp = fuzz.tp,
                                              .sequence_parallel = fuzz.sequence_parallel,
                                              .dtype = dtype,
                                              .seed = seed,
                                              .num_tokens = 9,
                                              .num_new_tokens = 4,
                                              .threads_per_rank = 1});
    const VerifiedPart* part = report.first_difference();
    if (part == nullptr) continue;
    const Comparison& c = *part->first_difference();
    ADD_FAILURE() << "seed " << seed << ": " << describe(fuzz) << ": " << part->name << " "
                  << c.quantity() << " differs by " << c.distance << ", bound " << c.bound;
  }
}

TEST(Fuzz, HealthyRunsInFp64_HaveNoDifference) {
  expect_no_difference(0, at::kDouble);
}
TEST(Fuzz, MoreHealthyRunsInFp64_HaveNoDifference) {
  expect_no_difference(25, at::kDouble);
}
TEST(Fuzz, HealthyRunsInFp32_HaveNoDifference) {
  expect_no_difference(50, at::kFloat);
}
TEST(Fuzz, MoreHealthyRunsInFp32_HaveNoDifference) {
  expect_no_difference(75, at::kFloat);
}
TEST(Fuzz, HealthyRunsInBf16_HaveNoDifference) {
  expect_no_difference(100, at::kBFloat16);
}
TEST(Fuzz, HealthyRunsOfGpt2InBf16_HaveNoDifference) {
  expect_no_difference(125, at::kBFloat16, "gpt2-tiny");
}
TEST(Fuzz, HealthyRunsOfBertInFp32_HaveNoDifference) {
  expect_no_difference(150, at::kFloat, "bert-tiny");
}
TEST(Fuzz, HealthyRunsOfRobertaInFp64_HaveNoDifference) {
  expect_no_difference(350, at::kDouble, "roberta-base", 5);
}
TEST(Fuzz, HealthyRunsOfDistilBertInFp64_HaveNoDifference) {
  EXPECT_LE(fuzz_case(preset_config("distilbert-base", 257), 4, 1).config.at("dim").as_int(), 64);
  expect_no_difference(375, at::kDouble, "distilbert-base", 5);
}
TEST(Fuzz, HealthyRunsOfQwen3InBf16_HaveNoDifference) {
  expect_no_difference(200, at::kBFloat16, "qwen3-0.6b");
}
TEST(Fuzz, HealthyRunsOfOlmo2InFp32_HaveNoDifference) {
  expect_no_difference(225, at::kFloat, "olmo2-1b");
}
TEST(Fuzz, HealthyRunsOfPhi3InFp64_HaveNoDifference) {
  expect_no_difference(250, at::kDouble, "phi3-mini");
}
TEST(Fuzz, HealthyRunsOfGemma2InFp32_HaveNoDifference) {
  expect_no_difference(275, at::kFloat, "gemma2-tiny");
}
TEST(Fuzz, HealthyRunsOfGemma3InFp64_HaveNoDifference) {
  expect_no_difference(300, at::kDouble, "gemma3-tiny");
}
// Some experts have no tokens.
TEST(Fuzz, HealthyRunsOfMixtralInFp64_HaveNoDifference) {
  expect_no_difference(325, at::kDouble, "mixtral-tiny", 4);
}
// Published configurations list a type for each layer and a factor for each pair of rotated dims.
TEST(Fuzz, ListsOfAConfiguration_FitItsNewSizes) {
  const Json config = Json::parse(R"({"model_type": "phi3", "vocab_size": 99, "hidden_size": 96,
    "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 3, "max_position_embeddings": 64, "pad_token_id": null,
    "original_max_position_embeddings": 32, "partial_rotary_factor": 0.75,
    "layer_types": ["full_attention", "full_attention", "full_attention"],
    "rope_scaling": {"type": "longrope", "short_factor": [1, 1.5, 2, 2.5, 3, 3.5],
                     "long_factor": [2, 3, 4, 5, 6, 7]}})",
                                  "test");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const FuzzCase fuzz = fuzz_case(config, 4, seed);
    EXPECT_NO_THROW((void)make_model(fuzz.config)) << describe(fuzz);
    EXPECT_EQ(fuzz.config.at("layer_types").size(),
              fuzz.config.at("num_hidden_layers").as_int(1, 2));
  }
}
TEST(Fuzz, HealthyRunsInFp16_HaveNoDifference) {
  expect_no_difference(175, at::kHalf);
}

}  // namespace
}  // namespace cleave::fuzz_test
