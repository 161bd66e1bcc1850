#include "cleave/model/other_settings.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/model/model.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/thrown.h"

// Oracle: what the families that have these settings compute with them in transformers 5.23.0.
namespace cleave::other_settings_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// A preset's config.json with one more member, which replaces one of the same key.
Json with(const std::string& preset, const std::string& key, const std::string& value) {
  std::string text = preset_config(preset, 0).dump();
  const size_t at = text.find("\"" + key + "\":");
  if (at != std::string::npos) text.replace(at + 1, 1, "x");  // another key
  text.insert(1, "\"" + key + "\": " + value + ", ");
  return Json::parse(text, "config.json");
}

struct Setting {
  std::string preset, key, value;
};

TEST(OtherSettings, SettingThatChangesTheResult_IsRefusedByName) {
  for (const auto& [preset, key, value] : std::vector<Setting>{
           {"llama-tiny", "logit_scale", "0.0625"},
           {"llama-tiny", "logits_scaling", "8"},
           {"llama-tiny", "embedding_multiplier", "12.0"},
           {"llama-tiny", "embedding_multiplier", "0"},
           {"llama-tiny", "residual_multiplier", "0.22"},
           {"llama-tiny", "attention_multiplier", "1"},
           {"llama-tiny", "final_logit_softcapping", "30.0"},
           {"llama-tiny", "num_local_experts", "8"},
           {"llama-tiny", "alibi", "true"},
           {"llama-tiny", "q_lora_rank", "1536"},
           {"llama-tiny", "per_layer_config", R"({"0":{"head_dim":8}})"},
           {"mistral-7b", "use_qk_norm", "true"},
           {"qwen2.5-0.5b", "use_mrope", "true"},
           {"olmo2-1b", "clip_qkv", "8"},
           {"phi3-mini", "num_experts", "16"},
           {"gemma3-tiny", "attn_logit_softcapping", "50.0"},
           {"gemma2-tiny", "use_bidirectional_attention", "true"},
           {"qwen3-moe-tiny", "shared_expert_intermediate_size", "512"},
           {"qwen3-moe-tiny", "routed_scaling_factor", "2.5"},
           {"qwen3-moe-tiny", "scoring_func", "\"sigmoid\""},
           {"qwen3-moe-tiny", "scoring_func", "1"},
           {"mixtral-tiny", "num_shared_experts", "1"},
           {"gpt2", "attn_logit_softcapping", "20"},
           {"bert-base", "embedding_multiplier", "2"},
       }) {
    const Error error = test::thrown_by([&] { (void)make_model(with(preset, key, value)); });
    EXPECT_EQ(error.code(), Code::kFormat) << preset << key;
    EXPECT_THAT(error.what(), HasSubstr(str("config.json: \"", key, "\" is ", value,
                                            "; it is not supported for this model_type; expected")))
        << preset;
  }
}

TEST(OtherSettings, QuantisedWeights_AreRefusedInEveryFamily) {
  for (const std::string& preset : preset_names()) {
    if (preset == "imdb-bert") continue;  // registered like a user's own, whose keys mean anything
    const Error error = test::thrown_by([&] {
      (void)make_model(with(preset, "quantization_config", R"({"quant_method": "gptq"})"));
    });
    EXPECT_EQ(error.code(), Code::kFormat) << preset;
    EXPECT_THAT(error.what(), HasSubstr("\"quantization_config\" is {\"quant_method\":\"gptq\"}"));
    EXPECT_THAT(error.what(), HasSubstr("or a GGUF file of the types F32"));
  }
}

TEST(OtherSettings, ValueWithoutEffect_IsAccepted) {
  for (const auto& [preset, key, value] : std::vector<Setting>{
           {"llama-tiny", "logit_scale", "1.0"},
           {"llama-tiny", "attention_multiplier", "null"},
           {"llama-tiny", "final_logit_softcapping", "null"},
           {"llama-tiny", "clip_qkv", "null"},
           {"llama-tiny", "num_experts", "0"},
           {"llama-tiny", "num_local_experts", "1"},
           {"llama-tiny", "use_qk_norm", "false"},
           {"llama-tiny", "quantization_config", "null"},
           {"llama-tiny", "quantization_config", "{}"},
           {"qwen3-0.6b", "use_qk_norm", "true"},
           {"qwen3-moe-tiny", "scoring_func", "\"softmax\""},
           {"qwen3-moe-tiny", "shared_expert_intermediate_size", "0"},
           {"mixtral-tiny", "routed_scaling_factor", "1"},
           {"gemma2-tiny", "attn_logit_softcapping", "20"},
           {"gemma3-tiny", "final_logit_softcapping", "20"},
       }) {
    EXPECT_NE(make_model(with(preset, key, value)), nullptr) << preset << key;
  }
}

TEST(OtherSettings, PresetsAndConfigsOfTransformers_HaveNone) {
  for (const std::string& preset : preset_names()) {
    EXPECT_NE(make_model(preset_config(preset, 0)), nullptr) << preset;
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(test::source_file("tests/golden/models"))) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  ASSERT_GT(files.size(), 20U);
  for (const fs::path& file : files) {
    EXPECT_NE(make_model(Json::parse_file(file).at("config")), nullptr) << file;
  }
}

TEST(OtherSettings, RealModels_HaveNone) {
  CLEAVE_NEEDS_DATA();
  int num_read = 0;
  for (const auto& entry : fs::recursive_directory_iterator(test::data_folder())) {
    if (entry.path().filename() != "config.json") continue;
    EXPECT_NE(make_model(Json::parse_file(entry.path())), nullptr) << entry.path();
    ++num_read;
  }
  EXPECT_GT(num_read, 3);
}

}  // namespace
}  // namespace cleave::other_settings_test
