#include <cmath>

#include <gmock/gmock.h>

#include "cleave/model/families.h"
#include "tests/support/decoder_windows.h"
#include "tests/support/thrown.h"

// Oracle: configuration_gemma2.py, configuration_gemma3.py and their models in transformers 5.23.0.
namespace cleave::config_test {
namespace {

using test::windows_of;
using testing::HasSubstr;

using Read = DecoderConfig (*)(const Json&);

/// Members that every config.json needs, and `more`, which begins with a comma if not empty.
Json config(const std::string& more = "", int num_layers = 7) {
  return Json::parse(str(R"({"vocab_size": 260000, "hidden_size": 1024, "intermediate_size": 48,
      "num_attention_heads": 8, "num_hidden_layers": )",
                         num_layers, more, "}"),
                     "config.json");
}

/// The rotary base of each layer.
std::vector<double> thetas(const DecoderConfig& c) {
  std::vector<double> out;
  for (const DecoderLayer& layer : c.layers) out.push_back(layer.rotary.value_or(c.rotary).theta);
  return out;
}

TEST(GemmaConfig, MissingKeys_HaveTheFamilysDefaults) {
  for (const Read read : {&gemma2_config, &gemma3_config}) {
    const DecoderConfig c = read(config());
    EXPECT_EQ(c.facts.num_kv_heads, 4);
    EXPECT_EQ(c.head_dim, 256);
    EXPECT_EQ(c.facts.eos_ids, std::vector<int64_t>{1});
    EXPECT_EQ(c.facts.pad_id, 0);
    EXPECT_EQ(c.norm_eps, 1e-6);
    EXPECT_EQ(c.norm_offset, 1);
    EXPECT_EQ(c.norms, BlockNorms::kBoth);
    EXPECT_EQ(c.activation, Activation::kGeluTanh);
    EXPECT_EQ(c.embedding_scale, 32);
    EXPECT_EQ(c.score_divisor, 16);
    EXPECT_TRUE(c.tied);
    EXPECT_FALSE(c.qkv_bias || c.out_bias || c.mlp_bias);
  }
  const DecoderConfig two = gemma2_config(config());
  EXPECT_EQ(two.facts.max_positions, 8192);
  EXPECT_EQ(two.score_cap, 50);
  EXPECT_EQ(two.logit_cap, 30);
  EXPECT_EQ(two.qk_norm, QkNorm::kNone);
  EXPECT_EQ(windows_of(two), (std::vector<int64_t>{4096, 0, 4096, 0, 4096, 0, 4096}));
  EXPECT_EQ(thetas(two), std::vector<double>(7, 1e4));
  const DecoderConfig three = gemma3_config(config());
  EXPECT_EQ(three.facts.max_positions, 131072);
  EXPECT_EQ(three.score_cap, 0);
  EXPECT_EQ(three.logit_cap, 0);
  EXPECT_EQ(three.qk_norm, QkNorm::kEachHead);
  EXPECT_EQ(windows_of(three), (std::vector<int64_t>{4096, 4096, 4096, 4096, 4096, 0, 4096}));
  EXPECT_EQ(thetas(three), (std::vector<double>{1e4, 1e4, 1e4, 1e4, 1e4, 1e6, 1e4}));
}

TEST(GemmaConfig, SoftCapsAndScalar_AreRead) {
  const std::string caps =
      R"(, "attn_logit_softcapping": 7.5, "final_logit_softcapping": null, "query_pre_attn_scalar": 144)";
  const DecoderConfig c = gemma2_config(config(caps));
  EXPECT_EQ(c.score_cap, 7.5);
  EXPECT_EQ(c.logit_cap, 0);
  EXPECT_EQ(c.score_divisor, 12);
  EXPECT_EQ(gemma3_config(config(R"(, "final_logit_softcapping": 20)")).logit_cap, 20);
}

// hidden_act is in published files and has no effect.
TEST(GemmaConfig, Activation_IsHiddenActivation) {
  const std::string both = R"(, "hidden_act": "silu", "hidden_activation": "gelu")";
  EXPECT_EQ(gemma2_config(config(both)).activation, Activation::kGelu);
  EXPECT_EQ(gemma2_config(config(R"(, "hidden_act": "silu")")).activation, Activation::kGeluTanh);
}

TEST(GemmaConfig, LayerTypes_ReplaceThePattern) {
  const std::string window = R"(, "sliding_window": 5)";
  EXPECT_EQ(windows_of(gemma3_config(config(window + R"(, "sliding_window_pattern": 3)", 6))),
            (std::vector<int64_t>{5, 5, 0, 5, 5, 0}));
  EXPECT_EQ(windows_of(gemma3_config(config(R"(, "sliding_window_pattern": 1)", 2))),
            (std::vector<int64_t>{0, 0}));
  const std::string types =
      R"(, "sliding_window_pattern": 1, "layer_types": ["full_attention", "sliding_attention"])";
  for (const Read read : {&gemma2_config, &gemma3_config}) {
    EXPECT_EQ(windows_of(read(config(window + types, 2))), (std::vector<int64_t>{0, 5}));
  }
}

TEST(GemmaConfig, RotaryOfBothTypesOfLayers_IsReadInBothForms) {
  using Scaling = RotaryOptions::Scaling;
  const std::string two = R"(, "layer_types": ["sliding_attention", "full_attention"])";
  const std::string older = R"(, "rope_theta": 500, "rope_local_base_freq": 50,
      "rope_scaling": {"rope_type": "linear", "factor": 8})";
  const std::string newer = R"(, "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 500},
      "sliding_attention": {"rope_type": "default", "rope_theta": 50}})";
  for (const std::string& form : {older, newer}) {
    const DecoderConfig c = gemma3_config(config(two + form, 2));
    EXPECT_EQ(thetas(c), (std::vector<double>{50, 500}));
    EXPECT_EQ(c.rotary.scaling, Scaling::kLinear);
    EXPECT_EQ(c.rotary.factor, 8);
    ASSERT_TRUE(c.layers[0].rotary);
    EXPECT_EQ(c.layers[0].rotary->scaling, Scaling::kNone);
  }
  // A type without settings, or without rope_theta, has the defaults.
  const std::string part =
      R"(, "rope_local_base_freq": 50, "rope_parameters": {"full_attention": {"rope_type": "linear",
          "factor": 2}, "sliding_attention": null})";
  EXPECT_EQ(thetas(gemma3_config(config(two + part, 2))), (std::vector<double>{50, 1e6}));
}

TEST(GemmaConfig, SettingsThatAreNotImplemented_AreRefusedByName) {
  struct Refused {
    Read read;
    std::string more, message;
  };
  for (const Refused& r : {
           Refused{&gemma2_config, R"(, "use_bidirectional_attention": true)",
                   "\"use_bidirectional_attention\" is true"},
           {&gemma3_config, R"(, "use_bidirectional_attention": true)",
            "\"use_bidirectional_attention\" is true"},
           {&gemma3_config, R"(, "attn_logit_softcapping": 50)",
            "\"attn_logit_softcapping\" is 50"},
           {&gemma2_config, R"(, "attn_logit_softcapping": 0)", "\"attn_logit_softcapping\" is 0"},
           {&gemma2_config, R"(, "query_pre_attn_scalar": -1)", "\"query_pre_attn_scalar\" is -1"},
           {&gemma2_config, R"(, "mlp_bias": true)", "\"mlp_bias\" is true"},
           {&gemma2_config, R"(, "sliding_window": null)", "\"sliding_window\" is null"},
           {&gemma3_config, R"(, "sliding_window_pattern": 0)", "\"sliding_window_pattern\" is 0"},
           {&gemma3_config, R"(, "rope_parameters": {"rope_type": "default"})",
            "expected settings for full_attention or sliding_attention"},
           {&gemma3_config,
            R"(, "rope_scaling": {"rope_type": "linear", "factor": 8},
               "rope_parameters": {"full_attention": {"rope_type": "default"}})",
            "rope_parameters has settings for full_attention too"},
           {&gemma3_config, R"(, "rope_scaling": {"rope_type": "longrope"})",
            "longrope is not supported for this model_type"},
           {&gemma3_config, R"(, "rope_parameters": {"sliding_attention": {"mrope_section": [1]}})",
            "mrope_section"},
       }) {
    const Error error = test::thrown_by([&] { (void)r.read(config(r.more)); });
    EXPECT_EQ(error.code(), Code::kFormat) << r.more;
    EXPECT_THAT(error.what(), HasSubstr(r.message)) << r.more;
  }
}

}  // namespace
}  // namespace cleave::config_test
