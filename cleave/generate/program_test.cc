#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "cleave/generate/options.h"
#include "cleave/generate/printer.h"
#include "cleave/text/json.h"
#include "tests/support/captured_stdout.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

// The commands as the front end calls them. Oracle: the texts that transformers generates.
namespace cleave::program_test {
namespace {

std::string printed(const std::function<void()>& act) {
  ::testing::internal::CaptureStdout();
  act();
  return ::testing::internal::GetCapturedStdout();
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out.push_back(Json::parse(line, "stdout"));
  return out;
}

/// A copy of a model folder without the tokenizer.
std::string without_tokenizer(const std::string& model, const test::TempFolder& folder) {
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy(model + "/" + name, folder / name);
  }
  return folder.path().string();
}

class RealGenerateProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    CLEAVE_NEEDS_DATA();
    options_.model = test::data_folder() + "/models/stories260K";
    options_.tp = 2;
    options_.max_new_tokens = 12;
    options_.prompts = {"Once upon a time"};
  }

  GenerateOptions options_;
  const std::string story_ = "Once upon a time, there was a little girl named Lily. She";
};

TEST_F(RealGenerateProgram, StreamOfOnePrompt_IsPromptAndStory) {
  const std::string text = printed([&] { cleave_generate(options_); });
  EXPECT_EQ(text, story_.substr(0, text.size() - 1) + "\n");
  EXPECT_GT(text.size(), 40U);
}

TEST_F(RealGenerateProgram, NoStream_PrintsTheSame) {
  const std::string streamed = printed([&] { cleave_generate(options_); });
  options_.stream = false;
  EXPECT_EQ(printed([&] { cleave_generate(options_); }), streamed);
}

TEST_F(RealGenerateProgram, Json_IsOneObjectPerPromptWithAllKeys) {
  options_.json = true;
  options_.num_beams = 3;
  options_.num_return_sequences = 2;
  options_.prompts = {"Once upon a time", "One day, Lily went to the park"};
  const auto rows = lines_of(printed([&] { cleave_generate(options_); }));
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].at("prompt_ids").dump(), "[1,403,407,261,378]");
  for (const Json& row : rows) {
    ASSERT_EQ(row.at("sequences").size(), 2U);
    const Json best = row.at("sequences").at(size_t{0});
    EXPECT_EQ(best.at("ids").size(), 12U);
    EXPECT_GE(best.at("score").as_number(), row.at("sequences").at(1).at("score").as_number());
    EXPECT_FALSE(best.at("text").as_string().empty());
    EXPECT_GT(row.at("tokens_per_s").as_number(), 0);
    EXPECT_GT(row.at("first_token_s").as_number(), 0);
  }
}

TEST_F(RealGenerateProgram, IdsWithoutATokenizer_GiveIdsAndNullText) {
  const test::TempFolder folder;
  GenerateOptions ids = options_;
  ids.model = without_tokenizer(options_.model, folder);
  ids.prompts.clear();
  ids.prompt_ids = {{1, 403, 407, 261, 378}};
  ids.json = true;
  options_.json = true;
  const Json got = lines_of(printed([&] { cleave_generate(ids); })).at(0);
  const Json want = lines_of(printed([&] { cleave_generate(options_); })).at(0);
  const Json sequence = got.at("sequences").at(size_t{0});
  EXPECT_EQ(sequence.at("ids").dump(), want.at("sequences").at(size_t{0}).at("ids").dump());
  EXPECT_FALSE(sequence.has("text"));
  ids.json = false;
  EXPECT_TRUE(printed([&] { cleave_generate(ids); }).starts_with("1 403 407 261 378 432 383 "));
}

TEST_F(RealGenerateProgram, TokenizerOfAnotherFolder_IsTheModelsOwn) {
  const test::TempFolder folder;
  const std::string want = printed([&] { cleave_generate(options_); });
  options_.tokenizer = options_.model;
  options_.model = without_tokenizer(options_.model, folder);
  EXPECT_EQ(printed([&] { cleave_generate(options_); }), want);
  options_.tokenizer = "";
  const Error error = test::thrown_by([&] { cleave_generate(options_); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_NE(std::string(error.what()).find("has no tokenizer, which text needs; give"),
            std::string::npos);
}

TEST_F(RealGenerateProgram, PredictWithATokenizerOfAnotherFolder_PrintsTheSame) {
  const test::TempFolder folder;
  PredictOptions predict;
  predict.model = test::data_folder() + "/models/bert-imdb";
  predict.texts = {"a fine film", "dull and far too long"};
  const std::string want = printed([&] { cleave_predict(predict); });
  EXPECT_NE(want.find("positive"), std::string::npos);
  predict.tokenizer = predict.model;
  predict.model = without_tokenizer(predict.model, folder);
  EXPECT_EQ(printed([&] { cleave_predict(predict); }), want);
}

// The model has 512 positions; the last new token needs none.
TEST_F(RealGenerateProgram, TextsWithoutPositionsLeft_AreReportedInOneLine) {
  options_.prompts.clear();
  options_.prompt_ids = {Ids(508, 403)};
  options_.json = true;
  const auto warnings = [&] {
    ::testing::internal::CaptureStderr();
    const auto rows = lines_of(printed([&] { cleave_generate(options_); }));
    EXPECT_EQ(rows.at(0).at("sequences").at(size_t{0}).at("ids").size(),
              static_cast<size_t>(std::min<int64_t>(5, options_.max_new_tokens)));
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warnings(),
            "cleave: warning: the text ends before --max-new-tokens 12: the model has 512 "
            "positions, so after the 508 tokens of the prompt at most 5 new tokens fit\n");
  options_.max_new_tokens = 5;
  EXPECT_EQ(warnings(), "");
  options_.max_new_tokens = 12;
  options_.prompt_ids = {Ids(508, 403), {1, 403}, Ids(510, 403)};
  EXPECT_EQ(warnings(),
            "cleave: warning: 2 of 3 texts end before --max-new-tokens 12: the model has 512 "
            "positions, so after the 508 tokens of prompt 1 at most 5 new tokens fit\n");
}

TEST_F(RealGenerateProgram, EndIdOutsideTheVocabulary_IsRefused) {
  options_.eos_id = 512;
  const Error error = test::thrown_by([&] { cleave_generate(options_); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_STREQ(error.what(),
               "--eos-id 512 is outside the vocabulary; the model's ids are 0 to 511");
}

TEST_F(RealGenerateProgram, EvalOnATerminal_ShowsProgress) {
  const test::TempFolder folder;
  std::ofstream(folder / "text.txt") << std::string(4000, 'a');
  EvalOptions eval;
  eval.model = options_.model;
  eval.data = {(folder / "text.txt").string()};
  eval.tokenizer = "bytes";
  eval.seq_len = 64;
  eval.json = true;
  ::setenv("TERM", "xterm", 1);
  test::Captured terminal(100);
  cleave_eval(eval);
  const std::string live = terminal.take();
  EXPECT_NE(live.find("sequence 8/62 ["), std::string::npos) << live;
  test::Captured pipe;
  cleave_eval(eval);
  EXPECT_TRUE(pipe.take().starts_with("{\"loss\":"));
}

TEST_F(RealGenerateProgram, StopText_IsTheEndOfTheText) {
  options_.stop = {"little"};
  EXPECT_EQ(printed([&] { cleave_generate(options_); }), "Once upon a time, there was a little\n");
}

TEST_F(RealGenerateProgram, Bf16_GivesTheStory) {
  options_.dtype = "bf16";
  const std::string text = printed([&] { cleave_generate(options_); });
  EXPECT_TRUE(text.starts_with("Once upon a time, there was a little")) << text;
}

// The model's heads have 8 numbers, which the fast kernel does not read.
TEST_F(RealGenerateProgram, KvCacheOf8Or16Bits_GivesTheStory) {
  for (const std::string type : {"bf16", "int8"}) {
    options_.kv_cache_dtype = type;
    const std::string text = printed([&] { cleave_generate(options_); });
    EXPECT_TRUE(text.starts_with("Once upon a time, there was a little")) << type << text;
  }
}

TEST_F(RealGenerateProgram, OtherDtypeOrDevice_IsRefused) {
  options_.dtype = "fp16";
  EXPECT_EQ(test::thrown_by([&] { cleave_generate(options_); }).code(), Code::kUsage);
  options_.dtype = "";
  options_.device = "tpu";
  EXPECT_EQ(test::thrown_by([&] { cleave_generate(options_); }).code(), Code::kUsage);
}

TEST_F(RealGenerateProgram, Eval_GivesTheSameLossPerplexityAndTokensOnAnyLayout) {
  const test::TempFolder folder;
  std::ofstream(folder / "text.txt") << [&] {
    std::string text;
    for (int i = 0; i < 40; ++i) text += story_ + " loved to play outside in the park.\n";
    return text;
  }();
  std::vector<double> losses;
  for (const int tp : {1, 2, 4}) {
    EvalOptions eval;
    eval.model = options_.model;
    eval.data = {(folder / "text.txt").string()};
    eval.tp = tp;
    eval.seq_len = 64;
    eval.batch_size = 3;
    eval.json = true;
    const Json row = lines_of(printed([&] { cleave_eval(eval); })).at(0);
    losses.push_back(row.at("loss").as_number());
    EXPECT_NEAR(row.at("perplexity").as_number(), std::exp(losses.back()), 1e-9);
    EXPECT_EQ(row.at("tokens").as_int() % 63, 0);
    EXPECT_GT(row.at("tokens").as_int(), 0);
  }
  EXPECT_LT(losses[0], 2);  // a repeated story, of the kind that the model was trained on
  EXPECT_NEAR(losses[1], losses[0], 1e-5);
  EXPECT_NEAR(losses[2], losses[0], 1e-5);
}

TEST(GenerateProgram, PromptThatDoesNotFitTheModel_IsRefusedBeforeItIsPrinted) {
  GenerateOptions options;
  options.model = test::golden_folder("gpt2");
  for (const auto& [ids, message] :
       {std::pair(std::vector<int64_t>{1, 1 << 20}, "prompt 1 has id 1048576; "),
        std::pair(std::vector<int64_t>(4096, 1), "prompt 1 has 4096 ids; ")}) {
    options.prompt_ids = {ids};
    std::string refused;
    EXPECT_EQ(printed([&] { refused = test::thrown_by([&] { cleave_generate(options); }).what(); }),
              "");
    EXPECT_TRUE(refused.starts_with(message)) << refused;
  }
}

TEST(Continuation, TextAfterAPrompt_KeepsItsSpaceAndReplacesIncompleteBytes) {
  const auto bytes = byte_tokenizer();
  EXPECT_EQ(continuation(bytes, {'a'}, {' ', 'b', 0xC3, 0xA9, 256}), " b\xC3\xA9");
  EXPECT_EQ(continuation(bytes, {'a'}, {0xC3}), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace cleave::program_test
