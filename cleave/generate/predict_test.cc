#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/data/dataset_kinds.h"
#include "cleave/file/atomic_write.h"
#include "cleave/generate/evaluate.h"
#include "cleave/generate/options.h"
#include "cleave/generate/runnable.h"
#include "cleave/tokenizer/tokenizer.h"
#include "tests/support/captured_stdout.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::predict_test {
namespace {

TEST(Ranked, Scores_BecomeProbabilitiesLargestFirst) {
  const Tensor scores = at::tensor({std::log(1.0), std::log(6.0), std::log(3.0)}, at::kDouble);
  const auto all = ranked(scores, 0);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].first, 1);
  EXPECT_NEAR(all[0].second, 0.6, 1e-12);
  EXPECT_EQ(all[2].first, 0);
  EXPECT_NEAR(all[2].second, 0.1, 1e-12);
  EXPECT_EQ(ranked(scores, 2).size(), 2U);
  EXPECT_EQ(ranked(scores, 9).size(), 3U);
}

TEST(Ranked, ScoreThatIsNaN_IsANumericsError) {
  const Tensor scores = at::tensor({1.0, NAN, 2.0}, at::kDouble);
  const Error error = test::thrown_by([&] { ranked(scores, 2); });
  EXPECT_EQ(error.code(), Code::kNumerics);
  EXPECT_STREQ(error.what(), "the scores are not finite; check the weights of the model");
}

std::vector<std::vector<int64_t>> rows_of_lengths(const std::vector<size_t>& lengths) {
  std::vector<std::vector<int64_t>> rows;
  rows.reserve(lengths.size());
  for (const size_t length : lengths) rows.emplace_back(length, 1);
  return rows;
}

TEST(BatchWindows, Rows_AreBatchedByLength) {
  const auto windows = windows_of(rows_of_lengths({9, 2, 8, 2, 1}), 2);
  ASSERT_EQ(windows.size(), 1U);
  std::vector<std::vector<size_t>> batches;
  for (const auto batch : windows[0].batches()) batches.emplace_back(batch.begin(), batch.end());
  EXPECT_EQ(batches, (std::vector<std::vector<size_t>>{{4, 1}, {3, 2}, {0}}));
  EXPECT_TRUE(windows_of({}, 2).empty());
  EXPECT_EQ(windows_of(rows_of_lengths({3, 1}), int64_t{1} << 62)[0].batches().size(), 1U);
}

// In the order of the rows, batches of four would have 1.69 times as many cells as there are
// tokens. By length, a batch of the 64 rows of a window spans four lengths at most.
TEST(BatchWindows, MostTokens_AreNotPadding) {
  std::vector<size_t> lengths;
  for (size_t i = 0; i < 200; ++i) lengths.push_back(1 + i * 37 % 64);
  const auto rows = rows_of_lengths(lengths);
  size_t num_tokens = 0, num_cells = 0, next = 0;
  for (const BatchWindow& window : windows_of(rows, 4)) {
    EXPECT_EQ(window.first, next);  // windows are in the order of the rows
    std::vector<bool> is_there(window.rows.size());
    for (const auto batch : window.batches()) {
      size_t longest = 0;
      for (const size_t row : batch) {
        is_there[row - window.first] = true;
        longest = std::max(longest, lengths[row]);
        num_tokens += lengths[row];
      }
      num_cells += longest * batch.size();
    }
    EXPECT_EQ(std::count(is_there.begin(), is_there.end(), true), std::ssize(window.rows));
    next += window.rows.size();
  }
  EXPECT_EQ(next, 200U);
  EXPECT_EQ(num_tokens, std::accumulate(lengths.begin(), lengths.end(), size_t{0}));
  EXPECT_LT(num_cells, num_tokens + num_tokens / 10);
}

// Oracle: transformers' logits for the same ids and token types.
TEST(ScoresOf, PairsOfTexts_AreThoseOfTransformers) {
  const auto golden = test::golden_answers("bert-cls");
  const auto rows_of = [](const Tensor& values) {
    std::vector<std::vector<int64_t>> rows;
    const Tensor whole = values.to(at::kLong).contiguous();
    for (int64_t row = 0; row < whole.size(0); ++row) {
      const int64_t* const first = whole[row].const_data_ptr<int64_t>();
      rows.emplace_back(first, first + whole.size(1));
    }
    return rows;
  };
  const auto rows = rows_of(golden.at("input.input_ids"));
  const auto types = rows_of(golden.at("input.token_type_ids"));
  ASSERT_TRUE(golden.at("input.token_type_ids").gt(0).any().item<bool>());
  ASSERT_TRUE(golden.at("input.attention_mask").gt(0).all().item<bool>());
  const Runnable runnable(test::golden_folder("bert-cls"), "", "cpu", {"classify"});
  for (const int tp : {1, 2}) {
    test::on_ranks(tp, [&](const Axis& axis) {
      const auto model = runnable.load(axis);
      const Tensor want = golden.at("logits");
      EXPECT_LE(test::largest_difference(scores_of(*model, axis, rows, types), want), 1e-5);
      EXPECT_GE(test::largest_difference(scores_of(*model, axis, rows), want), 1e-3);
    });
  }
}

constexpr const char* kScorer = R"({"model_type": "bert", "vocab_size": 257, "hidden_size": 8,
    "architectures": ["BertForSequenceClassification"], "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16,
    "id2label": {"0": "relevance"}, "problem_type": "regression"})";

/// What `cleave predict --json` prints, line by line.
std::vector<Json> predicted(const PredictOptions& options) {
  ::testing::internal::CaptureStdout();
  cleave_predict(options);
  std::istringstream lines(::testing::internal::GetCapturedStdout());
  std::vector<Json> out;
  for (std::string line; std::getline(lines, line);) out.push_back(Json::parse(line, "stdout"));
  return out;
}

// Oracle: scores_of(); in a regression the logit, else its sigmoid, as in transformers' pipelines.
TEST(PredictProgram, OneLabel_IsAScoreOfEachPair) {
  const test::TempFolder folder;
  std::string config = kScorer;
  test::write_model_folder(folder / "m", config, test::tensors_of(config));
  PredictOptions options;
  options.model = folder / "m";
  options.tokenizer = "bytes";
  options.json = true;
  options.texts = {"ab", "d"};
  options.second_texts = {"c", "efg"};
  const auto regression = predicted(options);
  const std::string problem = R"(, "problem_type": "regression")";
  config.erase(config.find(problem), problem.size());
  write_atomic(folder / "m/config.json", config);
  const auto probability = predicted(options);
  const Runnable runnable(options.model, "", "cpu", {"regression"});
  const std::vector<std::vector<int64_t>> rows{{'a', 'b', 'c'}, {'d', 'e', 'f', 'g'}};
  const std::vector<std::vector<int64_t>> types{{0, 0, 1}, {0, 1, 1, 1}};
  test::on_ranks(1, [&](const Axis& axis) {
    const Tensor want = scores_of(*runnable.load(axis), axis, rows, types);
    for (const size_t i : {size_t{0}, size_t{1}}) {
      const double logit = want[static_cast<int64_t>(i)].item<double>();
      EXPECT_EQ(regression[i].at("text_pair").as_string(), options.second_texts[i]);
      EXPECT_EQ(regression[i].at("label").as_string(), "relevance");
      EXPECT_NEAR(regression[i].at("score").as_number(), logit, 1e-6);
      EXPECT_NEAR(probability[i].at("score").as_number(), 1 / (1 + std::exp(-logit)), 1e-6);
    }
  });
  write_atomic(folder / "pairs.jsonl", R"({"text": "ab", "text_pair": "c"})");
  options.texts = options.second_texts = {};
  options.text_file = folder / "pairs.jsonl";
  EXPECT_EQ(predicted(options).at(0).dump(), probability[0].dump());
}

TEST(PredictProgram, TextsAndLabelsWithControlCharacters_ArePrintedAsJson) {
  const test::TempFolder folder;
  std::string config = kScorer;
  config.replace(config.find("relevance"), 9, "\\u001b[31mred");
  test::write_model_folder(folder / "m", config, test::tensors_of(config));
  PredictOptions options;
  options.model = folder / "m";
  options.tokenizer = "bytes";
  options.texts = {"\xc3\xa4\nb"};
  options.second_texts = {"c\x7f"};
  test::Captured captured;
  cleave_predict(options);
  const std::string out = captured.take();
  EXPECT_TRUE(out.starts_with("\"\xc3\xa4\\nb\"\n\"c\\u007f\"\n  ")) << out;
  EXPECT_TRUE(out.ends_with("  \"\\u001b[31mred\"\n")) << out;
}

TEST(PredictProgram, TextsWithoutTheirPairs_AreRefused) {
  const test::TempFolder folder;
  test::write_model_folder(folder / "m", kScorer, test::tensors_of(kScorer));
  PredictOptions options;
  options.model = folder / "m";
  options.tokenizer = "bytes";
  options.texts = {"a", "b"};
  options.second_texts = {"c"};
  EXPECT_STREQ(test::thrown_by([&] { cleave_predict(options); }).what(),
               "there are 2 --text and 1 --text-pair; give one --text-pair for each --text");
}

/// A masked language model, and a WordPiece vocabulary whose words all begin with an escape
/// character.
class MaskedWords : public testing::Test {
 protected:
  void SetUp() override {
    test::write_model_folder(folder_ / "m", std::string(test::kBertConfig),
                             test::tensors_of(std::string(test::kBertConfig)));
    std::ofstream vocab(folder_ / "m/vocab.txt");
    vocab << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (int i = 5; i < 50; ++i) vocab << "\x1b[" << i << "m\n";
    std::ofstream(folder_ / "m/tokenizer_config.json") << R"({"tokenizer_class": "BertTokenizer"})";
  }

  void predict(const std::string& text, int64_t seq_len = 0) const {
    PredictOptions o;
    o.model = folder_ / "m";
    o.texts = {text};
    o.seq_len = seq_len;
    o.top_k = 3;
    o.gemm = "mkl";
    cleave_predict(o);
  }

  [[nodiscard]] std::string refusal(const std::string& text, int64_t seq_len = 0) const {
    return test::thrown_by([&] { predict(text, seq_len); }).what();
  }

  test::TempFolder folder_;
};

TEST_F(MaskedWords, WordWithAControlCharacter_IsPrintedAsJson) {
  test::Captured captured;
  predict("a [MASK]");
  const std::string out = captured.take();
  EXPECT_EQ(out.find('\x1b'), std::string::npos) << out;
  EXPECT_NE(out.find("  \"\\u001b["), std::string::npos) << out;
}

TEST_F(MaskedWords, TokenThatTheModelLacks_IsNamed) {
  std::ofstream(folder_ / "m/vocab.txt", std::ios::app) << "new\n";
  EXPECT_EQ(refusal("new [MASK]"),
            "text 1 has id 50, 'new'; the model's ids are 0 to 49; leave this token out, or give "
            "the model's tokenizer with --tokenizer");
}

TEST_F(MaskedWords, TextWithoutMask_NamesALargerLengthOnlyWhereItHelps) {
  EXPECT_EQ(refusal("a"),
            "text 1 has no [MASK] in its 3 tokens; put it where a word is to be predicted");
  EXPECT_EQ(refusal("a a a a [MASK]", 4),
            "text 1 has no [MASK] in its first 4 tokens; put it where a word is to be predicted, "
            "or give a larger --seq-len");
  EXPECT_EQ(refusal("a a a a a a a a a a a a a a a a [MASK]"),
            "text 1 has no [MASK] in its first 16 tokens; put it where a word is to be predicted");
}

// Oracle: transformers' logits of the trained classifier, recorded with six digits.
TEST(RealClassifier, ReviewsOfUnequalLength_AreThoseOfTransformers) {
  CLEAVE_NEEDS_DATA();
  const Json golden =
      Json::parse_file(test::data_folder() + "/goldens/real-bert-imdb/predictions.json");
  const Json first = golden.at("first_100");
  std::vector<std::vector<int64_t>> rows;
  std::vector<double> want;
  for (size_t i = 0; i < 10; ++i) {  // the first ten have recorded ids
    const Json ids = first.at(i).at("ids");
    rows.emplace_back();
    for (size_t k = 0; k < ids.size(); ++k) rows.back().push_back(ids.at(k).as_int());
    for (const size_t c : {size_t{0}, size_t{1}})
      want.push_back(first.at(i).at("logits").at(c).as_number());
  }
  const Runnable runnable(test::data_folder() + "/models/bert-imdb", "", "cpu", {"classify"});
  for (const int tp : {1, 2, 4}) {
    test::on_ranks(tp, [&](const Axis& axis) {
      const auto model = runnable.load(axis);
      const Tensor scores = scores_of(*model, axis, rows);
      EXPECT_LE(test::largest_difference(scores, at::tensor(want).view({-1, 2})), 2e-5);
    });
  }
}

/// The first texts of a file, as `cleave predict` reads them.
std::vector<std::string> texts_of(const std::string& file, size_t count) {
  std::vector<std::string> texts;
  for_each_text(file, [&](const Texts& row) {
    if (texts.size() < count) texts.push_back(row.first);
  });
  return texts;
}

// Oracle: transformers' tokenizer and model on the same file.
TEST(RealClassifier, TextsOfReviews_GiveTheLogitsOfTransformers) {
  CLEAVE_NEEDS_DATA();
  const Json golden =
      Json::parse_file(test::data_folder() + "/goldens/real-bert-imdb/predictions.json");
  const Json first = golden.at("first_100");
  const std::string folder = test::data_folder() + "/models/bert-imdb";
  const auto rows =
      encode_batch(
          *load_tokenizer(folder),
          texts_of(test::data_folder() + "/text/imdb/imdb-test.csv", first.size()), {},
          {.truncation = Truncation::kOnlyFirst, .max_length = golden.at("max_length").as_int()})
          .input_ids;
  const Runnable runnable(folder, "", "cpu", {"classify"});
  test::on_ranks(2, [&](const Axis& axis) {
    const auto model = runnable.load(axis);
    const Tensor scores = scores_of(*model, axis, rows);
    ASSERT_EQ(scores.size(0), std::ssize(rows));
    int64_t num_right = 0;
    for (size_t i = 0; i < first.size(); ++i) {
      const Json want = first.at(i);
      const Tensor got = scores[static_cast<int64_t>(i)];
      for (const size_t c : {size_t{0}, size_t{1}}) {
        EXPECT_NEAR(got[static_cast<int64_t>(c)].item<double>(),
                    want.at("logits").at(c).as_number(), 2e-5)
            << "review " << i;
      }
      num_right += got.argmax().item<int64_t>() == want.at("label").as_int() ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(num_right) / 100, golden.at("accuracy").as_number(), 0.12);
  });
}

// Oracle: how many of 2,500 reviews transformers' model gets right.
TEST(RealClassifier, OnAllReviews_IsRightAsOftenAsInTransformers) {
  CLEAVE_NEEDS_DATA();
  if (std::getenv("CLEAVE_TEST_LEVEL") == nullptr) {
    GTEST_SKIP() << "2,500 reviews need the full tests: ./run test --full";
  }
  const Json golden =
      Json::parse_file(test::data_folder() + "/goldens/real-bert-imdb/predictions.json");
  const std::string folder = test::data_folder() + "/models/bert-imdb";
  const Runnable runnable(folder, "", "cpu", {"classify"});
  const auto data = open_dataset({.files = {test::data_folder() + "/text/imdb/imdb-test.csv"},
                                  .tokenizer = load_tokenizer(folder),
                                  .seq_len = golden.at("max_length").as_int(),
                                  .cache_folder = "",
                                  .vocab_size = runnable.facts().vocab_size,
                                  .task = Task::kClassify,
                                  .classes = runnable.facts().labels});
  test::on_ranks(2, [&](const Axis& axis) {
    const auto model = runnable.load(axis);
    const ClassScore score =
        evaluate_classes(*model, axis, *data, 50, batch_rules(*model, nullptr, false, 0));
    EXPECT_EQ(score.right, golden.at("correct").as_int());
  });
}

}  // namespace
}  // namespace cleave::predict_test
