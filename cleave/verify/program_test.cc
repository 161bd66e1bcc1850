#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "cleave/text/json.h"
#include "cleave/verify/fuzz.h"
#include "cleave/verify/options.h"
#include "cleave/verify/verify.h"
#include "tests/support/faulty_model.h"
#include "tests/support/golden.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

// The command as the front end calls it.
namespace cleave::program_test {
namespace {

using test::Fault;

struct Printed {
  int code;
  std::string text;
};

Printed run(const VerifyOptions& options) {
  ::testing::internal::CaptureStdout();
  int code = -1;
  try {
    code = cleave_verify(options);
  } catch (const Error& e) {
    ADD_FAILURE() << ::testing::internal::GetCapturedStdout() << e.what();
    return {.code = static_cast<int>(e.code()), .text = {}};
  }
  return {.code = code, .text = ::testing::internal::GetCapturedStdout()};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

VerifyOptions options_for(const std::string& model) {
  VerifyOptions options;
  options.model = model;
  options.tp = 2;
  options.gemm = "mkl";
  options.threads_per_rank = 1;
  return options;
}

/// A folder with a config.json of a model without weights.
class Folder {
 public:
  explicit Folder(const std::string& config) { std::ofstream(folder_ / "config.json") << config; }
  [[nodiscard]] std::string path() const { return folder_ / ""; }

 private:
  test::TempFolder folder_;
};

const char* const kSmall = R"({"model_type": "llama", "vocab_size": 19, "hidden_size": 12,
  "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 3,
  "num_key_value_heads": 3, "eos_token_id": 2})";

template <Fault fault>
std::unique_ptr<Model> make_faulty(const Json& config) {
  return std::make_unique<test::FaultyModel>(
      test::FaultyOptions{.fault = fault,
                          .vocab = config.at("vocab_size").as_int(),
                          .hidden = config.at("hidden_size").as_int(),
                          .heads = config.at("num_attention_heads").as_int(),
                          .kv_heads = config.at("num_key_value_heads").as_int(),
                          .inner = config.at("intermediate_size").as_int()});
}

const char* const kFaulty = R"({"model_type": "faulty", "vocab_size": 19, "hidden_size": 12,
  "intermediate_size": 10, "num_attention_heads": 3, "num_key_value_heads": 3})";

TEST(VerifyProgram, HealthyFuzz_ReportsAgreement) {
  const Folder folder(kSmall);
  VerifyOptions options = options_for(folder.path());
  options.fuzz = 3;
  options.tp = 3;
  const Printed text = run(options);
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(contains(text.text, "3 random configurations of ")) << text.text;
  options.json = true;
  const Printed json = run(options);
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(json.text, "{\"configurations\":3,\"agrees\":true}\n");
  options.json = false;
  options.fuzz = 1;
  const Printed one = run(options);
  EXPECT_TRUE(contains(one.text, "1 random configuration of ")) << one.text;
}

TEST(VerifyProgram, FailedConfiguration_IsPrintedWithACommandThatRepeatsIt) {
  register_model("faulty", &make_faulty<Fault::kGatherBackward>);
  const Folder folder(kFaulty);
  VerifyOptions options = options_for(folder.path());
  options.tp = 3;
  options.fuzz = 20;
  const Printed first = run(options);
  EXPECT_EQ(first.code, 9);
  EXPECT_TRUE(contains(first.text, "the first layer that differs is gather: gradient of the input"))
      << first.text;
  const std::string start =
      "repeat with: cleave verify --model " + folder.path() + " --tp 3 --fuzz 1 --seed ";
  const size_t at = first.text.find(start);
  ASSERT_NE(at, std::string::npos) << first.text;
  options.fuzz = 1;
  options.seed = std::stoull(first.text.substr(at + start.size()));
  const Printed second = run(options);
  EXPECT_EQ(second.code, 9);
  const auto last_lines = [](const std::string& text) {
    return text.substr(text.find("the first layer"));
  };
  EXPECT_EQ(last_lines(second.text).substr(0, 120), last_lines(first.text).substr(0, 120));
  options.json = true;
  const Json json = Json::parse(run(options).text, "stdout");
  EXPECT_FALSE(json.at("agrees").as_bool());
  EXPECT_EQ(json.at("report").at("first_difference").at("part").as_string(), "gather");
}

TEST(VerifyProgram, Preset_IsComparedLayerByLayer) {
  VerifyOptions options = options_for("llama-tiny");
  options.layer = "model.layers.5.mlp";
  const Printed text = run(options);
  EXPECT_EQ(text.code, 0);
  for (const char* part :
       {"model.layers.5.mlp.gate_proj", "the loss", "a training step", "decoding with the KV cache",
        "generated ids", "the sharded model matches the model on one rank (tp 2"}) {
    EXPECT_TRUE(contains(text.text, part)) << part << '\n' << text.text;
  }
  EXPECT_FALSE(contains(text.text, "model.layers.4.mlp.gate_proj  ")) << text.text;
}

TEST(VerifyProgram, Json_HasEveryValueOfEveryPart) {
  VerifyOptions options = options_for("llama-tiny");
  options.layer = "lm_head";
  options.json = true;
  const Printed printed = run(options);
  EXPECT_EQ(printed.code, 0);
  const Json json = Json::parse(printed.text, "stdout");
  EXPECT_TRUE(json.at("agrees").as_bool());
  EXPECT_FALSE(json.has("first_difference"));
  EXPECT_EQ(json.at("model").as_string(), "llama-tiny");
  const Json head = json.at("parts").at(1);
  EXPECT_EQ(head.at("name").as_string(), "lm_head");
  EXPECT_EQ(head.at("bytes").as_int(), 2 * 16 * 256 * 4);  // the gradient of its input is summed
  std::vector<std::string> quantities;
  for (size_t i = 0; i < head.at("values").size(); ++i) {
    const Json value = head.at("values").at(i);
    quantities.push_back(value.at("quantity").as_string());
    EXPECT_LE(value.at("distance").as_number(), value.at("bound").as_number());
  }
  EXPECT_EQ(quantities, (std::vector<std::string>{"output", "gradient of the input",
                                                  "gradient of model.embed_tokens.weight",
                                                  "norm of the gradients"}));
}

TEST(VerifyProgram, TypeOfTheRun_IsTheDefaultDtype) {
  const test::TempFolder folder;
  const std::string half = folder / "half";
  std::string config(test::kLlamaConfig);
  config.replace(config.find("float32"), 7, "bfloat16");
  test::write_model_folder(half, config, test::tensors_of(config));
  const auto verdict_of = [&](const VerifyOptions& options) {
    const Printed printed = run(options);
    EXPECT_EQ(printed.code, 0) << printed.text;
    return printed.text.substr(printed.text.rfind('(', printed.text.size()));
  };
  VerifyOptions options = options_for(half);
  EXPECT_EQ(verdict_of(options), "(tp 2, dp 1, bf16, seed 0)\n");
  options.dtype = "fp64";
  EXPECT_EQ(verdict_of(options), "(tp 2, dp 1, fp64, seed 0)\n");
  options = options_for("llama-tiny");
  options.layer = "lm_head";
  EXPECT_EQ(verdict_of(options), "(tp 2, dp 1, fp32, seed 0)\n");
}

TEST(VerifyProgram, FolderOfAModel_IsComparedWithItsWeights) {
  VerifyOptions options = options_for(test::golden_folder("llama-gqa-tied"));
  options.tp = 3;
  options.dp = 2;
  options.layer = "model.layers.1";
  const Printed printed = run(options);
  EXPECT_EQ(printed.code, 0) << printed.text;
}

/// A model of each family.
class VerifyOfFamily : public testing::TestWithParam<const char*> {};
TEST_P(VerifyOfFamily, EveryLayerByItself_Agrees) {
  const Printed printed = run(options_for(test::golden_folder(GetParam())));
  EXPECT_EQ(printed.code, 0) << printed.text;
}
INSTANTIATE_TEST_SUITE_P(Families, VerifyOfFamily,
                         testing::Values("bert-cls", "bert-mlm", "distilbert-cls", "distilbert-mlm",
                                         "gemma2", "gemma3", "gpt2", "llama-mha", "mistral",
                                         "mixtral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3",
                                         "qwen3-moe", "roberta-cls", "roberta-mlm", "smollm3"));

// As `train` accepts it. The folder itself may be a download that has ended early.
TEST(VerifyProgram, ConfigWithoutWeights_IsComparedWithRandomOnes) {
  const Folder folder(kSmall);
  VerifyOptions options = options_for(folder.path() + "config.json");
  options.tp = 3;
  const Printed text = run(options);
  EXPECT_EQ(text.code, 0);
  const std::string line = "the weights are random: " + options.model + " has none\n";
  EXPECT_EQ(text.text.substr(0, line.size()), line);
  EXPECT_TRUE(contains(text.text, "the sharded model matches the model on one rank (tp 3"));
  options.json = true;
  EXPECT_TRUE(Json::parse(run(options).text, "stdout").at("agrees").as_bool());
  options.model = folder.path();
  EXPECT_EQ(test::thrown_by([&] { cleave_verify(options); }).code(), Code::kIo);
  options.model = folder.path() + "other.json";
  EXPECT_EQ(test::thrown_by([&] { cleave_verify(options); }).code(), Code::kIo);
}

TEST(VerifyProgram, ConfigWithoutVocabulary_GetsThatOfPresets) {
  std::string text = kSmall;
  text.erase(text.find("\"vocab_size\": 19, "), 18);
  const Folder folder(text);
  VerifyOptions options = options_for(folder.path() + "config.json");
  options.layer = "lm_head";
  EXPECT_EQ(run(options).code, 0);
}

TEST(VerifyProgram, InvalidOptions_AreRefused) {
  const auto code_of = [](VerifyOptions options) {
    return test::thrown_by([&] { cleave_verify(options); }).code();
  };
  EXPECT_EQ(code_of(options_for("llama-tinny")), Code::kUsage);
  VerifyOptions options = options_for("llama-tiny");
  options.tp = 9;  // of 8 heads
  EXPECT_EQ(code_of(options), Code::kShape);
  options = options_for("llama-tiny");
  options.dtype = "int8";
  EXPECT_EQ(code_of(options), Code::kUsage);
}

TEST(Report, Difference_IsTheLastLine) {
  VerifySettings settings{.tp = 2, .num_tokens = 5, .threads_per_rank = 1};
  const VerifyReport report = verify_model(
      [] {
        return std::make_unique<test::FaultyModel>(
            test::FaultyOptions{.fault = Fault::kBiasOnEveryRank});
      },
      settings);
  const Comparison& c = *report.first_difference()->first_difference();
  const std::string text = report_text(report);
  EXPECT_TRUE(contains(text, "second.down")) << text;
  EXPECT_TRUE(contains(text, " !")) << text;
  const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  EXPECT_EQ(last, verdict(report) + "\n");
  EXPECT_EQ(last.find("the first layer that differs is second.down: output differs by "), 0U);
  EXPECT_TRUE(contains(last, str("at [", c.at[0], ", ", c.at[1], ", ", c.at[2], "] it is ")))
      << last;
}

TEST(FuzzCase, SameSeed_IsTheSameCaseAndAnotherIsNot) {
  const Json config = Json::parse(kSmall, "test");
  const FuzzCase a = fuzz_case(config, 4, 5);
  EXPECT_EQ(a.config.dump(), fuzz_case(config, 4, 5).config.dump());
  EXPECT_NE(a.config.dump(), fuzz_case(config, 4, 6).config.dump());
  EXPECT_EQ(a.config.at("model_type").as_string(), "llama");
  EXPECT_FALSE(a.config.has("eos_token_id"));
  EXPECT_FALSE(a.config.has("head_dim")) << "only existing keys vary";
  EXPECT_EQ(describe(a).find(str("tp ", a.tp)), 0U) << describe(a);
}

// Its family refuses biases, but files say that it has none.
TEST(FuzzCase, Mistral_HasNoBiases) {
  const Json config = Json::parse(
      R"({"model_type": "mistral", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "max_position_embeddings": 32, "attention_bias": false, "tie_word_embeddings": false})",
      "test");
  int tied = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const FuzzCase fuzz = fuzz_case(config, 2, seed);
    EXPECT_FALSE(fuzz.config.at("attention_bias").as_bool()) << seed;
    tied += fuzz.config.at("tie_word_embeddings").as_bool() ? 1 : 0;
  }
  EXPECT_GT(tied, 0);
}

TEST(FuzzCase, ManySeeds_ReachUnevenHeadsGroupsAndNarrowVocabularies) {
  const Json config = Json::parse(kSmall, "test");
  int uneven = 0, grouped = 0, narrow = 0, alone = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const FuzzCase fuzz = fuzz_case(config, 4, seed);
    const int64_t heads = fuzz.config.at("num_attention_heads").as_int();
    const int64_t kv_heads = fuzz.config.at("num_key_value_heads").as_int();
    EXPECT_GE(heads, fuzz.tp);
    EXPECT_EQ(heads % kv_heads, 0);
    uneven += heads % fuzz.tp != 0 ? 1 : 0;
    grouped += kv_heads < fuzz.tp ? 1 : 0;
    narrow += fuzz.config.at("vocab_size").as_int() % fuzz.tp != 0 ? 1 : 0;
    alone += fuzz.tp == 1 ? 1 : 0;
  }
  EXPECT_GT(uneven, 10);
  EXPECT_GT(grouped, 10);
  EXPECT_GT(narrow, 10);
  EXPECT_LT(alone, 50);
}

}  // namespace
}  // namespace cleave::program_test
