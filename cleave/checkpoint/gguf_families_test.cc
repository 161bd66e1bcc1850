// GGUF files of the families with other norms, fused matrices and experts. Oracle: weights in
// closed form, names written by hand, and the tables of the `gguf` package of llama.cpp's authors,
// if Python has it.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/format/gguf.h"
#include "cleave/model/gguf/names.h"
#include "tests/support/gguf_files.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::gguf_families_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::changed;
using test::closed_form;
using test::kLlamaConfig;
using test::read_whole;
using test::TempFolder;
using test::tensors_of;
using test::thrown_by;
using test::write_gguf_of;
using testing::ElementsAre;
using testing::HasSubstr;

/// A family's config in the sizes of kLlamaConfig.
std::string config_of(const std::string& model_type, const std::string& class_name,
                      const json& more = json::object()) {
  json values = {{"model_type", model_type}, {"architectures", {class_name}}};
  values.update(more);
  return changed(kLlamaConfig, values);
}

const json kGemmaValues = {{"tie_word_embeddings", true},
                           {"query_pre_attn_scalar", 4},
                           {"hidden_act", "gelu_pytorch_tanh"},
                           {"hidden_activation", "gelu_pytorch_tanh"},
                           {"sliding_window", 5}};

std::string mixtral_config() {
  return config_of("mixtral", "MixtralForCausalLM",
                   {{"num_local_experts", 3}, {"num_experts_per_tok", 2}});
}

std::string qwen3_moe_config() {
  return config_of("qwen3_moe", "Qwen3MoeForCausalLM",
                   {{"num_experts", 3},
                    {"num_experts_per_tok", 2},
                    {"moe_intermediate_size", 7},
                    {"norm_topk_prob", true}});
}

std::string gemma3_config(const json& more = json::object()) {
  json values = kGemmaValues;
  values.update(json{{"num_hidden_layers", 7}, {"rope_local_base_freq", 10000.0}});
  values.update(more);
  return config_of("gemma3_text", "Gemma3ForCausalLM", values);
}

std::string gemma2_config(const json& more = json::object()) {
  json values = kGemmaValues;
  values.update(json{{"attn_logit_softcapping", 7.5}, {"final_logit_softcapping", 20.0}});
  values.update(more);
  return config_of("gemma2", "Gemma2ForCausalLM", values);
}

/// Five layers, of which the fourth has no rotary positions.
std::string smollm3_config(const json& more = json::object()) {
  json values = {{"num_hidden_layers", 5}, {"no_rope_layer_interval", 4}};
  values.update(more);
  return config_of("smollm3", "SmolLM3ForCausalLM", values);
}

/// The rotary scaling `values`, of sequences of 16 in the original training.
std::string scaled_config(const std::string& model_type, const std::string& class_name,
                          json values) {
  const bool is_phi3 = model_type == "phi3";
  json more = json::object();
  (is_phi3 ? more : values)["original_max_position_embeddings"] = 16;
  more["rope_scaling"] = values;
  return config_of(model_type, class_name, more);
}

const json kLongRope = {{"type", "longrope"},
                        {"attention_factor", 1.5},
                        {"short_factor", {1.0, 1.25}},
                        {"long_factor", {2.0, 4.5}}};

std::vector<std::string> configs() {
  return {smollm3_config(),
          scaled_config("llama", "LlamaForCausalLM", {{"rope_type", "yarn"}, {"factor", 4.0}}),
          scaled_config("qwen3", "Qwen3ForCausalLM",
                        {{"rope_type", "yarn"},
                         {"factor", 2.5},
                         {"attention_factor", 1.5},
                         {"beta_fast", 16.0},
                         {"beta_slow", 2.0}}),
          scaled_config("phi3", "Phi3ForCausalLM", kLongRope),
          config_of("olmo2", "Olmo2ForCausalLM"),
          config_of("phi3", "Phi3ForCausalLM"),
          config_of("phi3", "Phi3ForCausalLM", {{"head_dim", 8}, {"partial_rotary_factor", 0.5}}),
          gemma2_config(),
          gemma3_config(),
          gemma3_config({{"tie_word_embeddings", false},
                         {"rope_theta", 500.0},
                         {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}}),
          mixtral_config(),
          qwen3_moe_config(),
          std::string(kLlamaConfig),
          std::string(test::kGpt2Config),
          config_of("qwen3", "Qwen3ForCausalLM")};
}

class GgufFamilies : public testing::TestWithParam<std::string> {};

// From a folder to a GGUF file and back: every parameter in closed form, and the same config, but
// for keys that only say what is the family's default.
TEST_P(GgufFamilies, FileAndBack_IsTheSameModel) {
  const TempFolder folder;
  const fs::path file = write_gguf_of(folder, GetParam());
  convert({.from = file.string(), .to = (folder / "back").string()});
  test::expect_file_is_whole(folder / "back/model.safetensors", tensors_of(GetParam()).size());
  const json was = json::parse(GetParam());
  const json is = json::parse(Json::parse_file((folder / "back/config.json").string()).dump());
  for (const auto& [key, value] : was.items()) EXPECT_EQ(is.value(key, json()), value) << key;
}

INSTANTIATE_TEST_SUITE_P(Configs, GgufFamilies, testing::ValuesIn(configs()),
                         [](const auto& of) { return str(of.index); });

// Written by hand: an expert's matrix is a slice of one tensor, and Gemma's norms have 1 added.
TEST(GgufFamiliesModel, ExpertsAreStackedAndGemmasNormsHaveOneAdded) {
  const std::tuple<std::string, std::string, int64_t> models[] = {
      {mixtral_config(), "model.layers.1.block_sparse_moe.experts.", 20},
      {qwen3_moe_config(), "model.layers.1.mlp.experts.", 7}};
  for (const auto& [config, prefix, width] : models) {
    const TempFolder folder;
    const Gguf file = Gguf::open(write_gguf_of(folder, config));
    const bool is_mixtral = width == 20;
    for (const auto& [stored, parameter, rows] :
         {std::tuple{"blk.1.ffn_gate_exps.weight", is_mixtral ? "w1" : "gate_proj", width},
          {"blk.1.ffn_up_exps.weight", is_mixtral ? "w3" : "up_proj", width},
          {"blk.1.ffn_down_exps.weight", is_mixtral ? "w2" : "down_proj", int64_t{24}}}) {
      const Tensor values = read_whole(file, stored);
      const int64_t columns = rows == 24 ? width : 24;
      ASSERT_EQ(values.sizes(), (std::vector<int64_t>{3, rows, columns}));
      for (int64_t e = 0; e < 3; ++e) {
        const std::string name = str(prefix, e, ".", parameter, ".weight");
        EXPECT_TRUE(at::equal(values[e], closed_form(name, {rows, columns}))) << name;
      }
    }
    const GgufTensor* router = file.find("blk.0.ffn_gate_inp.weight");
    ASSERT_NE(router, nullptr);
    EXPECT_EQ(router->type, GgufType::kF32);
  }
  const TempFolder folder;
  const Gguf file = Gguf::open(write_gguf_of(folder, gemma3_config(), "fp16"));
  for (const auto& [stored, parameter, size] :
       {std::tuple{"output_norm.weight", "model.norm.weight", 24},
        {"blk.2.attn_norm.weight", "model.layers.2.input_layernorm.weight", 24},
        {"blk.2.post_attention_norm.weight", "model.layers.2.post_attention_layernorm.weight", 24},
        {"blk.2.ffn_norm.weight", "model.layers.2.pre_feedforward_layernorm.weight", 24},
        {"blk.2.post_ffw_norm.weight", "model.layers.2.post_feedforward_layernorm.weight", 24},
        {"blk.2.attn_q_norm.weight", "model.layers.2.self_attn.q_norm.weight", 4}}) {
    EXPECT_TRUE(at::equal(read_whole(file, stored), closed_form(parameter, {size}) + 1)) << stored;
  }
}

// Closed form: llama.cpp multiplies yarn's own magnitude, 0.1 ln(factor) + 1, by attn_factor.
TEST(GgufFamiliesModel, RotaryScaling_HasLlamaCppsKeysAndTensors) {
  const auto metadata_of = [](const std::string& config) {
    const TempFolder folder;
    return Gguf::open(write_gguf_of(folder, config)).metadata();
  };
  const GgufMetadata usual = metadata_of(configs()[1]);
  EXPECT_EQ(usual.string_at("llama.rope.scaling.type"), "yarn");
  EXPECT_EQ(usual.number_or("llama.rope.scaling.factor", 0), 4);
  EXPECT_EQ(usual.int_at("llama.rope.scaling.original_context_length"), 16);
  EXPECT_EQ(usual.int_at("llama.context_length"), 64);
  for (const char* key : {"attn_factor", "yarn_beta_fast", "yarn_beta_slow"}) {
    EXPECT_FALSE(usual.has(str("llama.rope.scaling.", key))) << key;
  }
  const GgufMetadata other = metadata_of(configs()[2]);
  EXPECT_NEAR(other.number_or("qwen3.rope.scaling.attn_factor", 0), 1.5 / (0.1 * std::log(2.5) + 1),
              1e-7);
  EXPECT_EQ(other.number_or("qwen3.rope.scaling.yarn_beta_fast", 0), 16);
  EXPECT_EQ(other.number_or("qwen3.rope.scaling.yarn_beta_slow", 0), 2);
  const TempFolder folder;
  const Gguf phi3 = Gguf::open(write_gguf_of(folder, configs()[3], "fp16"));
  EXPECT_EQ(phi3.metadata().string_at("phi3.rope.scaling.type"), "longrope");
  EXPECT_EQ(phi3.metadata().int_at("phi3.rope.scaling.original_context_length"), 16);
  EXPECT_EQ(phi3.metadata().number_or("phi3.rope.scaling.attn_factor", 0), 1.5);
  EXPECT_TRUE(at::equal(read_whole(phi3, "rope_factors_short.weight"), at::tensor({1.0F, 1.25F})));
  EXPECT_TRUE(at::equal(read_whole(phi3, "rope_factors_long.weight"), at::tensor({2.0F, 4.5F})));
}

// Oracle: the tables of names in llama.cpp's own package.
TEST(GgufFamiliesModel, NamesOfAllFamilies_AreThoseOfPython) {
  if (!test::python_has("gguf")) GTEST_SKIP() << "python3 or $CLEAVE_PYTHON has no gguf";
  json models = json::array();
  for (const std::string& text : configs()) {
    const Json config = Json::parse(text, "config.json");
    const GgufFamily& family = gguf_family(config);
    json names = json::object();
    for (const TensorInfo& info : tensors_of(text)) {
      names[info.name] = gguf_name(family, info.name).value().name;
    }
    models.push_back({{"architecture", family.architecture}, {"names", names}});
  }
  const TempFolder folder;
  std::ofstream(folder / "models.json") << models.dump();
  const auto result = test::run_python(R"(
import json, re, sys
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map
archs = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
num_compared = 0
for model in json.load(open(sys.argv[1])):
    table = get_tensor_name_map(archs[model['architecture']], 9)
    for parameter, ours in model['names'].items():
        whole, suffix = parameter.rsplit('.', 1)
        whole = re.sub(r'experts\.\d+\.', 'experts.', whole)
        theirs = table.get_name(whole)
        assert theirs is not None and f'{theirs}.{suffix}' == ours, (parameter, ours, theirs)
        num_compared += 1
assert num_compared > 300, num_compared
)",
                                       {(folder / "models.json").string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(GgufFamiliesModel, SettingsThatLlamaCppLacks_AreRefusedAndLeaveNothing) {
  const auto refusal = [](std::string_view config) {
    const TempFolder folder;
    const Error error = thrown_by([&] { write_gguf_of(folder, config); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(test::names_below(folder.path()), ElementsAre("model"));
    return std::string(error.what());
  };
  EXPECT_THAT(refusal(smollm3_config({{"no_rope_layer_interval", 2}})),
              HasSubstr("layer 1 has no rotary positions; llama.cpp computes all but every 4th"));
  EXPECT_THAT(refusal(smollm3_config({{"no_rope_layers", {1, 1, 1, 1, 1}}})),
              HasSubstr("layer 3 has rotary positions"));
  EXPECT_THAT(refusal(smollm3_config({{"mlp_bias", true}})), HasSubstr("mlp_bias true"));
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", false}};
  EXPECT_THAT(refusal(scaled_config("llama", "LlamaForCausalLM", yarn)),
              HasSubstr("yarn with \"truncate\" false"));
  EXPECT_THAT(refusal(scaled_config("llama", "LlamaForCausalLM", kLongRope)),
              HasSubstr("longrope is written to GGUF for phi3 only"));
  EXPECT_THAT(refusal(changed(qwen3_moe_config(), {{"norm_topk_prob", false}})),
              HasSubstr("norm_topk_prob false, which llama.cpp does not compute"));
  EXPECT_THAT(refusal(changed(qwen3_moe_config(), {{"mlp_only_layers", {1}}})),
              HasSubstr("mlp.gate_proj.weight has no name in GGUF"));
  EXPECT_THAT(refusal(config_of("olmo2", "Olmo2ForCausalLM", {{"attention_bias", true}})),
              HasSubstr("attention_bias true"));
  EXPECT_THAT(refusal(gemma2_config({{"query_pre_attn_scalar", 24}})),
              HasSubstr("query_pre_attn_scalar 24, which llama.cpp does not compute for this "
                        "model; expected 4"));
  EXPECT_THAT(refusal(gemma2_config({{"hidden_activation", "gelu"}})),
              HasSubstr("hidden_activation"));
  EXPECT_THAT(refusal(gemma2_config({{"layer_types", {"full_attention", "full_attention"}}})),
              HasSubstr("layer 0 has no sliding window"));
  EXPECT_THAT(refusal(gemma2_config({{"attn_logit_softcapping", nullptr}})),
              HasSubstr("expected a number above 0"));
  EXPECT_THAT(refusal(gemma3_config({{"sliding_window_pattern", 2}})),
              HasSubstr("layer 1 has no sliding window"));
  EXPECT_THAT(refusal(gemma3_config({{"rope_local_base_freq", 100.0}})),
              HasSubstr("rope_local_base_freq 100"));
  EXPECT_THAT(refusal(gemma3_config({{"final_logit_softcapping", 3.0}})),
              HasSubstr("final_logit_softcapping 3"));
}

}  // namespace
}  // namespace cleave::gguf_families_test
