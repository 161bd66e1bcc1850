// Models that learn which of several classes each text has.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/convert.h"
#include "cleave/generate/evaluate.h"
#include "cleave/generate/options.h"
#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "tests/support/golden.h"
#include "tests/support/label_models.h"
#include "tests/support/saved_models.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::multilabel_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::losses;
using test::printed;
using test::read_json;
using testing::HasSubstr;

const std::vector<std::string> kClasses{"rude", "odd", "late"};
/// The labels of the texts in comments().
const std::vector<std::vector<double>> kLabels{
    {1, 0, 0}, {1, 1, 0}, {0, 0, 0}, {0, 0.25, 1}, {1, 1, 1}};

class Multilabel : public test::LabelModels {
 protected:
  /// The golden classifier, for several classes each.
  std::string golden_model() {
    std::string path = folder_ / "golden";
    fs::copy(test::golden_folder("distilbert-cls"), path);
    json config = read_json(path + "/config.json");
    config["problem_type"] = "multi_label_classification";
    std::ofstream(path + "/config.json") << config;
    return path;
  }

  /// Texts with the labels of kLabels, five rows.
  std::string comments() {
    std::string path = folder_ / "comments.csv";
    std::ofstream(path) << "id,comment_text,rude,odd,late\n1,a cat,1,0,0\n2,a dog sleeps,1,1,0\n"
                           "3,it rains,0,0,0\n4,sun,0,0.25,1\n5,hot,1,1,1\n";
    return path;
  }

  /// A masked LM for the byte tokenizer.
  std::string masked_lm() {
    json config = json::parse(test::kBertConfig);
    config["vocab_size"] = 257;
    std::string path = folder_ / "words";
    test::write_model_folder(path, config.dump(), test::tensors_of(config.dump()));
    return path;
  }
  TrainOptions fine_tuning(const std::string& model, const std::string& out) {
    TrainOptions o = options(model, comments(), out);
    o.task = "multilabel";
    o.tokenizer = "bytes";
    o.steps = 6;
    o.lr = 1e-2;
    o.dtype = "fp64";
    o.eval_data = o.data;
    return o;
  }
};

TEST_F(Multilabel, EveryLayout_HasTheLossesAndNormsOfTransformers) {
  const std::string data = golden_rows([](const std::vector<int64_t>& ids) {
    std::vector<int> classes;
    for (const int c : {0, 1}) {
      if ((ids[0] >> c & 1) != 0) classes.push_back(c);
    }
    return json{{"labels", classes}};
  });
  expect_golden_steps("multilabel", golden_model(), data);
  EXPECT_EQ(read_json(folder_ / "pp/config.json").at("problem_type"), "multi_label_classification");
}

// Oracles: the run on one rank, the run's own evaluation, and the definition of the loss.
TEST_F(Multilabel, FromAMaskedLm_TrainsResumesAndPredictsOnOtherLayouts) {
  const std::string base = masked_lm();
  const std::vector<double> want = losses(fine_tuning(base, "one"));
  EXPECT_LT(want.back(), want.front());
  TrainOptions o = fine_tuning(base, "run");
  o.tp = 2;
  o.steps = 3;
  losses(o);
  o.resume = true;
  o.steps = 6;
  o.tp = 1;
  o.dp = 3;
  o.fsdp = true;
  const auto steps = test::steps_of(o);
  ASSERT_EQ(steps.size(), 6U);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(steps[i].loss, want[i], 1e-9) << i;
  const json config = read_json(o.out + "/config.json");
  EXPECT_EQ(config.at("architectures"), json{"BertForSequenceClassification"});
  EXPECT_EQ(config.at("problem_type"), "multi_label_classification");
  EXPECT_EQ(config.at("id2label"), (json{{"0", "rude"}, {"1", "odd"}, {"2", "late"}}));
  EXPECT_EQ(config.at("label2id").at("odd"), 1);
  const json score = evaluated(o.out, comments());
  EXPECT_NEAR(score.at("loss").get<double>(), *steps.back().eval_loss, 1e-9);
  EXPECT_FALSE(steps.back().eval_accuracy);
  EXPECT_EQ(score.at("rows"), 5);

  PredictOptions predict;
  predict.model = o.out;
  predict.text_file = comments();
  predict.gemm = "mkl";
  predict.json = true;
  std::istringstream lines(printed([&] { cleave_predict(predict); }));
  double sum = 0;
  for (const std::vector<double>& labels : kLabels) {
    std::string line;
    std::getline(lines, line);
    std::map<std::string, double> found;
    double last = 1;
    const json output = json::parse(line);
    for (const json& row : output.at("labels")) {
      EXPECT_LE(row.at("probability").get<double>(), last);
      last = found[row.at("label")] = row.at("probability");
    }
    ASSERT_EQ(found.size(), 3U);
    for (size_t c = 0; c < 3; ++c) {
      const double p = found.at(kClasses[c]);
      sum -= labels[c] * std::log(p) + (1 - labels[c]) * std::log(1 - p);
    }
  }
  EXPECT_NEAR(sum / 15, score.at("loss").get<double>(), 1e-9);
}

TEST_F(Multilabel, AdaptersAndTheHead_MergeIntoAModelWithTheSameLoss) {
  const std::string base = masked_lm();
  TrainOptions o = fine_tuning(base, "adapter");
  o.lora = 4;
  const std::vector<double> want = losses(o);
  EXPECT_LT(want.back(), want.front());
  o.out = folder_ / "layout";
  o.pp = 2;
  o.dp = 2;
  const std::vector<double> got = losses(o);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-9) << i;
  EXPECT_EQ(read_json(o.out + "/adapter_config.json").at("task_type"), "SEQ_CLS");
  const json score = evaluated(folder_ / "adapter", comments());
  ConvertReport report;
  cleave_convert({.from = folder_ / "adapter", .to = folder_ / "merged"}, report);
  EXPECT_EQ(read_json(folder_ / "merged/config.json").at("problem_type"),
            "multi_label_classification");
  EXPECT_NEAR(evaluated(folder_ / "merged", comments()).at("loss").get<double>(),
              score.at("loss").get<double>(), 1e-6);
}

// As in transformers, one class is one sigmoid.
TEST_F(Multilabel, OneClass_IsLearned) {
  TrainOptions o = fine_tuning(masked_lm(), "run");
  o.data = {folder_ / "one.csv"};
  std::ofstream(o.data.front()) << "text,odd\na,1\nbb,0\nccc,1\ndddd,0\n";
  o.eval_data = {};
  const std::vector<double> got = losses(o);
  EXPECT_LT(got.back(), got.front());
  EXPECT_EQ(read_json(o.out + "/config.json").at("id2label"), (json{{"0", "odd"}}));
}

TEST_F(Multilabel, ModelWithAnotherHead_IsRefused) {
  TrainOptions o = fine_tuning(test::golden_folder("bert-cls"), "run");
  EXPECT_THAT(
      test::thrown_by([&] { cleave_train(o); }).what(),
      HasSubstr("--task multilabel does not fit this model, which is trained for classify"));
  o.model = golden_model();
  o.task = "classify";
  EXPECT_THAT(
      test::thrown_by([&] { cleave_train(o); }).what(),
      HasSubstr("--task classify does not fit this model, which is trained for multilabel"));
}

// Closed form. The predictions are 100, 110 and 010, the classes 100, 010 and 110. The F1 of the
// classes is 2/4, 4/4 and, without any, 0. Three of all are found, one is wrong and one missing.
TEST(MultilabelScore, ThreeSequences_HaveTheirF1) {
  const double yes = std::log(3), no = -yes;  // probabilities 3/4 and 1/4
  const Tensor logits =
      at::tensor({yes, no, no, yes, yes, no, no, yes, no}, at::kDouble).view({3, 3});
  const Tensor targets = at::tensor({1, 0, 0, 0, 1, 0, 1, 1, 0}, at::kDouble).view({3, 3});
  const MultilabelScore score = multilabel_score(logits, targets);
  EXPECT_NEAR(score.loss, (7 * std::log(4.0 / 3) + 2 * std::log(4.0)) / 9, 1e-15);
  EXPECT_DOUBLE_EQ(score.micro_f1, 6.0 / 8);
  EXPECT_DOUBLE_EQ(score.macro_f1, 0.5);
  EXPECT_DOUBLE_EQ(score.exact_match, 1.0 / 3);
  // A probability of 0.5 predicts a class, and a target of 0.5 is one.
  const Tensor half = at::zeros({1, 2}, at::kDouble);
  EXPECT_EQ(multilabel_score(half, at::full({1, 2}, 0.5, at::kDouble)).exact_match, 1);
  EXPECT_EQ(multilabel_score(half, at::full({1, 2}, 0.25, at::kDouble)).exact_match, 0);
  EXPECT_EQ(multilabel_score(half - 1, half).micro_f1, 0);
}

}  // namespace
}  // namespace cleave::multilabel_test
