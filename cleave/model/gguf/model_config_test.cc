// Metadata made here, without a model's weights. Oracle: the defaults of transformers' config
// classes, and llama.cpp's rules for keys that are missing.
#include "cleave/model/gguf/model_config.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/format/gguf_writer.h"
#include "cleave/model/gguf/tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::model_config_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

/// What a config.json has in any case.
json small_sizes() {
  return {{"vocab_size", 50},
          {"hidden_size", 24},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 6},
          {"intermediate_size", 20}};
}

/// `keys` with other values.
json with(json keys, const json& more) {
  keys.update(more);
  return keys;
}

/// A file with this metadata and, in zeros, the tensors that a config depends on.
fs::path write_metadata(const TempFolder& folder, const GgufMetadata& metadata,
                        bool is_tied = false) {
  std::vector<GgufTensor> tensors(is_tied ? 1 : 2);
  tensors[0].name = "token_embd.weight";
  if (!is_tied) tensors[1].name = "output.weight";
  for (GgufTensor& tensor : tensors) tensor.shape = {50, 24};
  const GgufPlan plan(metadata, tensors);
  std::string bytes = plan.head();
  bytes.resize(static_cast<size_t>(plan.total_bytes()));
  std::ofstream(folder / "made.gguf", std::ios::binary) << bytes;
  return folder / "made.gguf";
}

/// The metadata of a config.
GgufMetadata metadata_of(const json& config) {
  GgufMetadata metadata("made.gguf");
  add_gguf_config(metadata, Json::parse(config.dump(), "config.json"), "made");
  return metadata;
}

struct FamilyCase {
  const char* model_type;
  json keys;  ///< of the config, on top of sizes
  const char* read_as;
  json expected;  ///< of the config read back; the defaults are transformers'
};

// From config.json to metadata and back, with the defaults of each family's config class.
TEST(GgufMetadata, ConfigOfAFamily_ComesBackWithItsDefaults) {
  const json sizes = small_sizes();
  const json own = {{"sliding_window", 100}, {"num_key_value_heads", 2}};
  const json sliding = {
      {"sliding_window", 100}, {"use_sliding_window", true}, {"num_key_value_heads", 6}};
  const FamilyCase cases[] = {
      {"llama",
       json::object(),
       "llama",
       {{"max_position_embeddings", 2048}, {"num_key_value_heads", 6}}},
      {"mistral", {{"num_key_value_heads", 2}}, "llama", {{"max_position_embeddings", 4096}}},
      {"mistral", own, "llama", {{"max_position_embeddings", 100}, {"attention_bias", false}}},
      {"mistral",
       with(own, {{"sliding_window", nullptr}, {"head_dim", 8}}),
       "llama",
       {{"max_position_embeddings", 131072}, {"num_key_value_heads", 2}, {"head_dim", 8}}},
      {"qwen2", own, "qwen2", {{"max_position_embeddings", 32768}, {"head_dim", 4}}},
      {"qwen2", sliding, "qwen2", {{"max_position_embeddings", 32768}}},
      {"qwen2",
       with(sliding, {{"max_window_layers", 1}, {"tie_word_embeddings", true}}),
       "qwen2",
       {{"max_position_embeddings", 100}, {"tie_word_embeddings", true}}},
      {"qwen3", own, "qwen3", {{"max_position_embeddings", 32768}, {"head_dim", 128}}},
      {"qwen3",
       with(sliding, {{"layer_types", {"full_attention", "sliding_attention"}}, {"head_dim", 4}}),
       "qwen3",
       {{"max_position_embeddings", 100}, {"head_dim", 4}, {"attention_bias", false}}}};
  for (const FamilyCase& one : cases) {
    const TempFolder folder;
    const json config = with(with(sizes, one.keys), {{"model_type", one.model_type}});
    SCOPED_TRACE(config.dump());
    const bool is_tied = config.value("tie_word_embeddings", false);
    const Gguf file = Gguf::open(write_metadata(folder, metadata_of(config), is_tied));
    const json back = json::parse(config_from_gguf(file).dump());
    json expected = with(sizes, one.expected);
    expected.update({{"model_type", one.read_as},
                     {"tie_word_embeddings", is_tied},
                     {"rope_theta", 10000.0},
                     {"rms_norm_eps", 1e-6}});
    for (const auto& [key, value] : expected.items()) {
      EXPECT_EQ(back.value(key, json()), value) << key;
    }
    EXPECT_FALSE(back.contains("sliding_window"));
  }
}

using RopeKeys = std::vector<std::pair<const char*, std::variant<double, const char*>>>;

/// The metadata of a llama with more keys, which begin with "llama.rope.".
GgufMetadata llama_with(const RopeKeys& keys) {
  GgufMetadata metadata = metadata_of(with(small_sizes(), {{"model_type", "llama"}}));
  for (const auto& [key, value] : keys) {
    const std::string name = str("llama.rope.", key);
    if (const auto* number = std::get_if<double>(&value)) {
      metadata.add_f32(name, *number);
    } else {
      metadata.add_string(name, std::get<const char*>(value));
    }
  }
  return metadata;
}

// llama.cpp: the type is linear if there is none; the factor has an older key; 0 and 1 are none.
TEST(GgufMetadata, RopeScaling_IsReadAsLlamaCppDoes) {
  const std::pair<RopeKeys, double> cases[] = {
      {{}, 0},
      {{{"scaling.factor", 4.0}}, 4},
      {{{"scale_linear", 2.0}}, 2},
      {{{"scaling.factor", 4.0}, {"scale_linear", 2.0}}, 4},
      {{{"scaling.factor", 1.0}, {"scale_linear", 2.0}}, 0},
      {{{"scaling.factor", 0.0}}, 0},
      {{{"scaling.type", "linear"}, {"scale_linear", 2.0}}, 2},
      {{{"scaling.type", "none"}, {"scaling.factor", 4.0}}, 0}};
  for (const auto& [keys, factor] : cases) {
    const TempFolder folder;
    const GgufMetadata metadata = llama_with(keys);
    const Gguf file = Gguf::open(write_metadata(folder, metadata));
    const json back = json::parse(config_from_gguf(file).dump());
    const json expected = factor == 0 ? json() : json{{"rope_type", "linear"}, {"factor", factor}};
    EXPECT_EQ(back.value("rope_scaling", json()), expected);
  }
}

TEST(GgufMetadata, RopeScalingThatCleaveLacks_IsRefusedByItsKey) {
  const std::pair<RopeKeys, const char*> cases[] = {
      {{{"scaling.type", "longrope"}, {"scaling.factor", 4.0}}, "'longrope' is not supported"},
      {{{"scaling.attn_factor", 2.0}}, "llama.rope.scaling.attn_factor"},
      {{{"scaling.type", "yarn"}, {"scaling.yarn_ext_factor", 0.5}}, "yarn_ext_factor"},
      {{{"scaling.type", "yarn"}, {"scaling.yarn_log_multiplier", 0.1}}, "yarn_log_multiplier"}};
  for (const auto& [keys, part] : cases) {
    const TempFolder folder;
    const GgufMetadata metadata = llama_with(keys);
    const Gguf file = Gguf::open(write_metadata(folder, metadata));
    const Error error = thrown_by([&] { (void)config_from_gguf(file); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(GgufMetadata, EndIdsBeyondThree_AreReported) {
  const auto warning = [](const json& ends) {
    GgufMetadata metadata;
    const std::string config = with(small_sizes(), {{"eos_token_id", ends}}).dump();
    testing::internal::CaptureStderr();
    add_gguf_tokenizer(metadata, {}, usual_facts(Json::parse(config, "config.json")));
    EXPECT_EQ(metadata.int_at("tokenizer.ggml.eos_token_id"), 2);
    EXPECT_EQ(metadata.int_at("tokenizer.ggml.eot_token_id"), 7);
    EXPECT_EQ(metadata.int_at("tokenizer.ggml.eom_token_id"), 9);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warning({2, 7, 2, 9}), "");
  EXPECT_THAT(warning({2, 7, 9, 11}),
              HasSubstr("4 end tokens; GGUF can store 3, so in llama.cpp id 11"));
}

/// The tokenizer.json of a SentencePiece vocabulary with these tokens and scores.
json read_pieces(const GgufValue::Strings& tokens, const GgufValue::Numbers& scores,
                 const GgufValue::Ints& types) {
  const TempFolder folder;
  GgufMetadata metadata;
  metadata.add_string("tokenizer.ggml.model", "llama");
  metadata.add("tokenizer.ggml.tokens", {GgufKind::kString, tokens});
  metadata.add("tokenizer.ggml.scores", {GgufKind::kF32, scores});
  metadata.add("tokenizer.ggml.token_type", {GgufKind::kI32, types});
  const Gguf file = Gguf::open(write_metadata(folder, metadata));
  return json::parse(tokenizer_from_gguf(file).at(0).text);
}

TEST(GgufMetadata, MergesOfUnusedTokens_AreLeftOut) {
  const auto all = read_pieces({"a", "b", "ab", "aab"}, {0, 0, -1, -2}, {1, 1, 1, 1});
  EXPECT_EQ(all["model"]["merges"],
            (json::array({json::array({"a", "b"}), json::array({"a", "ab"})})));
  const auto some = read_pieces({"a", "b", "ab", "aab"}, {0, 0, -1, -2}, {1, 5, 1, 1});
  EXPECT_EQ(some["model"]["merges"], (json::array({json::array({"a", "ab"})})));
}

TEST(GgufMetadata, PiecesWithoutASensibleNumberOfMerges_AreRefused) {
  const auto refusal = [](size_t shortest, size_t longest, double score) {
    GgufValue::Strings tokens;
    for (size_t i = shortest; i <= longest; ++i) tokens.emplace_back(i, 'a');
    const GgufValue::Numbers scores(tokens.size(), score);
    const GgufValue::Ints types(tokens.size(), 1);
    return std::string(thrown_by([&] { (void)read_pieces(tokens, scores, types); }).what());
  };
  EXPECT_THAT(refusal(1, 2, std::nan("")), HasSubstr("the score of token 0 is not finite"));
  EXPECT_THAT(refusal(1025, 1025, 0), HasSubstr("token 0 has 1025 bytes; expected at most 1024"));
  EXPECT_THAT(refusal(1, 1024, 0), HasSubstr("their merges have more than 67108864 bytes"));
}

}  // namespace
}  // namespace cleave::model_config_test
