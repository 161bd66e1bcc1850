#include "cleave/model/decoder/config.h"

#include <cmath>

#include <gmock/gmock.h>

#include "cleave/model/families.h"
#include "tests/support/decoder_windows.h"
#include "tests/support/thrown.h"

// Oracle: the configuration classes and modeling_rope_utils.py of transformers 5.23.0.
namespace cleave::config_test {
namespace {

using test::windows_of;
using testing::HasSubstr;

using Read = DecoderConfig (*)(const Json&);

/// Members that every config.json needs, and `more`, which begins with a comma if not empty.
Json config(const std::string& more = "") {
  return Json::parse(R"({"vocab_size": 130000, "hidden_size": 1024, "intermediate_size": 48,
      "num_hidden_layers": 4, "num_attention_heads": 32)" +
                         more + "}",
                     "config.json");
}

std::vector<bool> rotary_layers(const DecoderConfig& c) {
  std::vector<bool> out;
  for (const DecoderLayer& layer : c.layers) out.push_back(layer.has_rotary);
  return out;
}

TEST(DecoderConfig, MissingKeys_HaveTheFamilysDefaults) {
  struct Expected {
    Read read;
    int64_t kv_heads, head_dim, positions, window;
    double eps, theta;
    bool tied;
    std::vector<int64_t> eos;
    std::optional<int64_t> pad;
    bool qkv_bias = false;
  };
  const std::optional<int64_t> none;
  for (const Expected& e : {
           Expected{&llama_config, 32, 32, 2048, 0, 1e-6, 1e4, false, {2}, none},
           {&qwen2_config, 32, 32, 32768, 0, 1e-6, 1e4, false, {}, none, true},
           {&qwen3_config, 32, 128, 32768, 0, 1e-6, 1e4, false, {}, none},
           {&mistral_config, 8, 32, 131072, 4096, 1e-6, 1e4, false, {2}, none},
           {&mixtral_config, 8, 32, 131072, 0, 1e-5, 1e6, false, {2}, none},
           {&qwen3_moe_config, 4, 32, 32768, 0, 1e-6, 1e4, false, {}, none},
           {&smollm3_config, 4, 32, 32768, 0, 1e-6, 2e6, true, {128001}, 128004},
           {&olmo2_config, 32, 32, 2048, 0, 1e-5, 1e4, false, {50279}, 1},
           {&phi3_config, 32, 32, 4096, 0, 1e-5, 1e4, false, {32000}, 32000},
       }) {
    const DecoderConfig c = e.read(config());
    EXPECT_EQ(c.facts.num_kv_heads, e.kv_heads);
    EXPECT_EQ(c.head_dim, e.head_dim);
    EXPECT_EQ(c.facts.max_positions, e.positions);
    EXPECT_EQ(windows_of(c), std::vector<int64_t>(4, e.window));
    EXPECT_EQ(c.norm_eps, e.eps);
    EXPECT_EQ(c.rotary.theta, e.theta);
    EXPECT_EQ(c.tied, e.tied);
    EXPECT_EQ(c.facts.eos_ids, e.eos);
    EXPECT_EQ(c.facts.pad_id, e.pad);
    EXPECT_EQ(c.qkv_bias, e.qkv_bias);
    EXPECT_FALSE(c.out_bias);
    EXPECT_FALSE(c.mlp_bias);
  }
}

TEST(DecoderConfig, NullKvHeadsAndHeadDim_FollowFromTheHeads) {
  for (const Read read : {&qwen2_config, &qwen3_config, &mistral_config, &smollm3_config}) {
    const DecoderConfig c = read(config(R"(, "num_key_value_heads": null, "head_dim": null)"));
    EXPECT_EQ(c.facts.num_kv_heads, 32);
    EXPECT_EQ(c.head_dim, 32);
  }
}

TEST(DecoderConfig, SlidingWindows_AreThoseOfTheirLayers) {
  const std::string on = R"(, "use_sliding_window": true, "sliding_window": 5)";
  for (const Read read : {&qwen2_config, &qwen3_config}) {
    EXPECT_EQ(windows_of(read(config(on + R"(, "max_window_layers": 3)"))),
              (std::vector<int64_t>{0, 0, 0, 5}));
    EXPECT_EQ(windows_of(read(config(on))), std::vector<int64_t>(4, 0));  // from layer 28
    EXPECT_EQ(windows_of(read(config(R"(, "sliding_window": 5, "max_window_layers": 0)"))),
              std::vector<int64_t>(4, 0));
    EXPECT_EQ(windows_of(read(config(R"(, "use_sliding_window": true, "max_window_layers": 0)"))),
              std::vector<int64_t>(4, 4096));
    EXPECT_EQ(windows_of(read(config(R"(, "use_sliding_window": false, "sliding_window": 0)"))),
              std::vector<int64_t>(4, 0));
    EXPECT_EQ(
        windows_of(read(config(on + R"(, "layer_types": ["sliding_attention", "full_attention",
                                              "full_attention", "sliding_attention"])"))),
        (std::vector<int64_t>{5, 0, 0, 5}));
  }
  EXPECT_EQ(windows_of(mistral_config(config(R"(, "sliding_window": 5)"))),
            std::vector<int64_t>(4, 5));
  EXPECT_EQ(windows_of(mistral_config(config(R"(, "sliding_window": null)"))),
            std::vector<int64_t>(4, 0));
  EXPECT_EQ(windows_of(phi3_config(config(R"(, "sliding_window": 5)"))),
            std::vector<int64_t>(4, 5));
  // In SmolLM3 the layers without rotary positions.
  EXPECT_EQ(windows_of(smollm3_config(config(on))), (std::vector<int64_t>{0, 0, 0, 5}));
  EXPECT_EQ(windows_of(smollm3_config(config(on + R"(, "no_rope_layers": [0, 1, 0, 1])"))),
            (std::vector<int64_t>{5, 0, 5, 0}));
  EXPECT_EQ(windows_of(smollm3_config(config(R"(, "sliding_window": 0)"))),
            std::vector<int64_t>(4, 0));
  EXPECT_EQ(windows_of(smollm3_config(config(
                R"(, "use_sliding_window": false, "sliding_window": 5, "layer_types": [
                   "full_attention", "sliding_attention", "full_attention", "full_attention"])"))),
            (std::vector<int64_t>{0, 5, 0, 0}));
}

// Oracle: configuration_olmo3.py and modeling_olmo3.py in transformers 5.19.0.
TEST(DecoderConfig, Olmo3_ScalesTheRotaryPositionsOfFullLayersOnly) {
  const DecoderConfig c =
      olmo3_config(config(R"(, "rope_scaling": {"rope_type": "linear", "factor": 8.0})"));
  EXPECT_EQ(windows_of(c), (std::vector<int64_t>{4096, 4096, 4096, 0}));
  EXPECT_EQ(c.rotary.scaling, RotaryOptions::Scaling::kLinear);
  EXPECT_EQ(c.rotary.theta, 500000);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(c.layers[i].rotary.value().scaling, RotaryOptions::Scaling::kNone);
    EXPECT_EQ(c.layers[i].rotary.value().theta, 500000);
  }
  EXPECT_FALSE(c.layers[3].rotary.has_value());
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_EQ(c.facts.pad_id, 1);
  const DecoderConfig newer = olmo3_config(config(
      R"(, "sliding_window": 7, "rope_parameters": {"full_attention": {"rope_type": "default",
         "rope_theta": 300.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 200.0}},
         "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"])"));
  EXPECT_EQ(windows_of(newer), (std::vector<int64_t>{0, 7, 0, 0}));
  EXPECT_EQ(newer.rotary.theta, 300);
  EXPECT_EQ(newer.layers[1].rotary.value().theta, 200);
}

// As NousResearch/Yarn-Mistral-7b-128k has it; transformers 5.19 ignores "finetuned".
TEST(DecoderConfig, KeyOfPublishedFilesWithoutEffect_IsAccepted) {
  const DecoderConfig c = mistral_config(config(
      R"(, "rope_scaling": {"factor": 16.0, "finetuned": true, "type": "yarn",
                            "original_max_position_embeddings": 8192})"));
  EXPECT_EQ(c.rotary.scaling, RotaryOptions::Scaling::kYarn);
  EXPECT_EQ(c.rotary.factor, 16);
}

TEST(DecoderConfig, LayersWithoutRotaryPositions_AreListedOrEveryFourth) {
  EXPECT_EQ(rotary_layers(smollm3_config(config())), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(rotary_layers(smollm3_config(config(R"(, "no_rope_layer_interval": 2)"))),
            (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(rotary_layers(smollm3_config(config(R"(, "no_rope_layers": [0, 1, 1, 0, 1])"))),
            (std::vector<bool>{false, true, true, false}));
}

std::vector<bool> expert_layers(const DecoderConfig& c) {
  std::vector<bool> out;
  for (const DecoderLayer& layer : c.layers) out.push_back(layer.has_experts);
  return out;
}

TEST(DecoderConfig, Experts_HaveTheFamilysDefaults) {
  const ExpertsConfig mixtral = mixtral_config(config()).experts;
  EXPECT_EQ(mixtral.num_experts, 8);
  EXPECT_EQ(mixtral.top_k, 2);
  EXPECT_EQ(mixtral.intermediate, 48);
  EXPECT_TRUE(mixtral.normalizes);
  const ExpertsConfig qwen = qwen3_moe_config(config()).experts;
  EXPECT_EQ(qwen.num_experts, 128);
  EXPECT_EQ(qwen.top_k, 8);
  EXPECT_EQ(qwen.intermediate, 768);
  EXPECT_FALSE(qwen.normalizes);
  EXPECT_TRUE(qwen3_moe_config(config(R"(, "norm_topk_prob": true)")).experts.normalizes);
}

TEST(DecoderConfig, NumberOfExperts_IsReadUnderBothNames) {
  for (const Read read : {&mixtral_config, &qwen3_moe_config}) {
    for (const std::string key : {"num_experts", "num_local_experts"}) {
      EXPECT_EQ(read(config(", \"" + key + "\": 9")).experts.num_experts, 9);
    }
  }
}

TEST(DecoderConfig, BlocksWithExperts_AreThoseOfTheStepThatAreNotListed) {
  EXPECT_EQ(expert_layers(mixtral_config(config())), std::vector<bool>(4, true));
  EXPECT_EQ(expert_layers(qwen3_moe_config(config())), std::vector<bool>(4, true));
  EXPECT_EQ(expert_layers(qwen3_moe_config(config(R"(, "decoder_sparse_step": 2)"))),
            (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(expert_layers(qwen3_moe_config(config(R"(, "mlp_only_layers": [0, 3, 9])"))),
            (std::vector<bool>{false, true, true, false}));
}

TEST(DecoderConfig, OldAndNewFormOfRotaryScaling_AreRead) {
  const auto rotary = [](const std::string& more) { return llama_config(config(more)).rotary; };
  using Scaling = RotaryOptions::Scaling;
  EXPECT_EQ(rotary(R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 500})").theta,
            500);
  EXPECT_EQ(rotary(R"(, "rope_theta": 500, "rope_scaling": {"type": "linear", "factor": 2})").theta,
            500);
  const std::string dynamic = R"(, "rope_scaling": {"rope_type": "dynamic", "factor": 2})";
  EXPECT_EQ(rotary(dynamic).scaling, Scaling::kNone);
  const RotaryOptions yarn = rotary(
      R"(, "rope_parameters": {"rope_type": "yarn", "factor": 4, "beta_fast": 16, "truncate": false,
           "original_max_position_embeddings": 512, "rope_theta": 1e6})");
  EXPECT_EQ(yarn.scaling, Scaling::kYarn);
  EXPECT_EQ(yarn.original_positions, 512);
  EXPECT_EQ(yarn.beta_fast, 16);
  EXPECT_FALSE(yarn.truncates);
  EXPECT_NEAR(yarn.magnitude, 0.1 * std::log(4) + 1, 1e-15);
  const std::string scaled = R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4)";
  EXPECT_NEAR(rotary(scaled + R"(, "mscale": 2, "mscale_all_dim": 0.5})").magnitude,
              (0.2 * std::log(4) + 1) / (0.05 * std::log(4) + 1), 1e-15);
  EXPECT_EQ(rotary(scaled + R"(, "attention_factor": 1.5})").magnitude, 1.5);
  const std::string original = scaled + R"(, "original_max_position_embeddings": )";
  EXPECT_EQ(rotary(original + "512.0}").original_positions, 512);
  EXPECT_THAT(test::thrown_by([&] { rotary(original + "512.5}"); }).what(),
              testing::HasSubstr("\"rope_scaling.original_max_position_embeddings\" is 512.5; "
                                 "expected an integer"));
}

TEST(DecoderConfig, LongRopeOfPhi3_IsReadUnderItsOlderNamesToo) {
  for (const std::string type : {"su", "yarn", "longrope"}) {
    const DecoderConfig c = phi3_config(config(
        R"(, "max_position_embeddings": 32768, "partial_rotary_factor": 0.25, "rope_scaling":
             {"type": ")" +
        type + R"(", "short_factor": [1, 1, 2, 2], "long_factor": [3, 3, 4, 4]})"));
    EXPECT_EQ(c.rotary.scaling, RotaryOptions::Scaling::kLongRope);
    EXPECT_EQ(c.rotary.head_dim, 8);
    EXPECT_EQ(c.rotary.long_factors, (std::vector<double>{3, 3, 4, 4}));
    EXPECT_EQ(c.rotary.original_positions, 4096);
    // sqrt(1 + log(32768 / 4096) / log(4096)) = sqrt(1 + 3 / 12)
    EXPECT_NEAR(c.rotary.magnitude, std::sqrt(1.25), 1e-15);
  }
}

TEST(DecoderConfig, SettingsThatAreNotImplemented_AreRefusedByName) {
  struct Refused {
    Read read;
    std::string more, message;
  };
  const std::string rope = R"(, "rope_scaling": {"rope_type": )";
  for (const Refused& r : {
           Refused{&llama_config, rope + R"("mrope"})", "rope_type 'mrope' is not supported"},
           {&llama_config, rope + R"("default", "mrope_section": [1]})", "mrope_section"},
           {&llama_config, R"(, "partial_rotary_factor": 0.5)", "\"partial_rotary_factor\" is 0.5"},
           {&llama_config, rope + R"("linear", "factor": 2, "partial_rotary_factor": 0.5})",
            "rope_scaling.partial_rotary_factor"},
           {&llama_config, R"(, "sliding_window": 5)", "\"sliding_window\" is 5"},
           {&olmo2_config, R"(, "use_sliding_window": true)", "\"use_sliding_window\" is true"},
           {&llama_config, R"(, "layer_types": ["sliding_attention"])", "expected full_attention"},
           {&mistral_config, R"(, "layer_types": ["full_attention"])",
            "expected sliding_attention"},
           {&mistral_config, R"(, "attention_bias": true)", "\"attention_bias\" is true"},
           {&qwen2_config, R"(, "mlp_bias": true)", "\"mlp_bias\" is true"},
           {&qwen2_config, R"(, "layer_types": ["full_attention"])", "one type for each of"},
           {&qwen3_config, R"(, "layer_types": ["full_attention", "chunked_attention", "a", "b"])",
            "\"layer_types[1]\" is \"chunked_attention\""},
           {&qwen3_config,
            R"(, "layer_types": ["full_attention", "full_attention", "full_attention",
                                 "sliding_attention"])",
            "needs a sliding_window"},
           {&smollm3_config, R"(, "no_rope_layers": [1, 0])", "expected a number for each of"},
           {&phi3_config, R"(, "resid_pdrop": 0.1)", "\"resid_pdrop\" is 0.1"},
           {&phi3_config, R"(, "embd_pdrop": 0.1)", "\"embd_pdrop\" is 0.1"},
           {&phi3_config, rope + R"("linear", "factor": 2})", "expected default or longrope"},
           {&phi3_config, rope + R"("longrope", "short_factor": [1], "long_factor": [1]})",
            "expected a list of 16 numbers"},
           {&phi3_config, R"(, "partial_rotary_factor": 0.1)", "it rotates 3 of 32 dims"},
           {&qwen2_config, R"(, "attention_dropout": 1)", "expected a probability"},
           {&llama_config, R"(, "is_causal": false)", "\"is_causal\" is false"},
           {&phi3_config, R"(, "is_causal": null)", "\"is_causal\" is null"},
           {&mixtral_config, R"(, "num_local_experts": 4, "num_experts_per_tok": 5)",
            "a token has 5 of 4 experts"},
           {&mixtral_config, R"(, "num_experts": 4, "num_local_experts": 5)",
            "\"num_experts\" is 4; num_local_experts is 5"},
           {&mixtral_config, R"(, "attention_bias": true)", "\"attention_bias\" is true"},
           {&qwen3_moe_config, R"(, "num_experts": 1024, "moe_intermediate_size": 2048)",
            "together wider than"},
           {&mixtral_config, R"(, "num_local_experts": 2000)", "\"num_local_experts\" is 2000"},
           {&qwen3_moe_config, R"(, "decoder_sparse_step": 0)", "\"decoder_sparse_step\" is 0"},
           {&qwen2_config, R"(, "use_sliding_window": true, "sliding_window": 0)",
            "\"sliding_window\" is 0"},
       }) {
    const Error error = test::thrown_by([&] { (void)r.read(config(r.more)); });
    EXPECT_EQ(error.code(), Code::kFormat) << r.more;
    EXPECT_THAT(error.what(), HasSubstr(r.message)) << r.more;
  }
}

}  // namespace
}  // namespace cleave::config_test
