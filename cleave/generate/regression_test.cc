// Models with one label: they learn, predict and are evaluated on numbers.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/convert.h"
#include "cleave/file/folder_writer.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/generate/evaluate.h"
#include "cleave/generate/options.h"
#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "tests/support/golden.h"
#include "tests/support/label_models.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::regression_test {
namespace {

using nlohmann::json;
using test::losses;
using test::printed;
using test::read_json;
using testing::HasSubstr;

class Regression : public test::LabelModels {
 protected:
  /// The golden classifier with one label, whose head is the first row of the classifier's. It has
  /// no problem_type, as a reranker's.
  std::string one_label() {
    const std::string golden = test::golden_folder("distilbert-cls");
    auto tensors = test::read_tensors(golden);
    for (const char* name : {"classifier.weight", "classifier.bias"}) {
      tensors[name] = tensors[name].narrow(0, 0, 1).contiguous();
    }
    std::vector<TensorInfo> infos;
    for (const auto& [name, t] : tensors) infos.push_back({name, DType::kF32, t.sizes().vec()});
    std::string path = folder_ / "one_label";
    FolderWriter folder(path);
    const SafetensorsPlan plan(infos);
    plan.create_files(folder);
    SafetensorsWriter writer(folder.path(), plan);
    for (const auto& [name, t] : tensors) {
      writer.write_block(name, {}, {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()});
    }
    writer.finish();
    json config = read_json(golden + "/config.json");
    config["num_labels"] = 1;
    folder.write_file("config.json", config.dump());
    folder.commit();
    return path;
  }

  /// Pairs of texts with numbers, as GLUE's STS-B has them.
  std::string pairs() {
    std::string path = folder_ / "pairs.csv";
    std::ofstream(path) << "sentence1,sentence2,score\na cat,cats,4.25\na dog,rain,0.5\n"
                           "it rains,rain falls,3.75\nsun,moon,1.5\nhot,cold,1\nred,crimson,4.5\n";
    return path;
  }
  std::string masked_lm() {
    std::ofstream(folder_ / "bert.json") << json{{"architectures", {"BertForMaskedLM"}},
                                                 {"model_type", "bert"},
                                                 {"vocab_size", 257},
                                                 {"hidden_size", 16},
                                                 {"intermediate_size", 24},
                                                 {"num_hidden_layers", 2},
                                                 {"num_attention_heads", 2},
                                                 {"max_position_embeddings", 32},
                                                 {"initializer_range", 0.3}};
    std::ofstream(folder_ / "words.jsonl")
        << json{{"input_ids", {1, 5, 9, 4}}, {"labels", {-100, 5, -100, -100}}} << '\n';
    TrainOptions o = options(folder_ / "bert.json", folder_ / "words.jsonl", "words");
    o.batch_size = 1;
    cleave_train(o);
    return o.out;
  }
  TrainOptions fine_tuning(const std::string& model, const std::string& out) {
    TrainOptions o = options(model, pairs(), out);
    o.task = "regression";
    o.tokenizer = "bytes";
    o.seq_len = 24;
    o.batch_size = 3;
    o.steps = 6;
    o.lr = 1e-2;
    o.dtype = "fp64";
    o.eval_data = o.data;
    return o;
  }
};

TEST_F(Regression, EveryLayout_HasTheLossesAndNormsOfTransformers) {
  const std::string data = golden_rows([](const std::vector<int64_t>& ids) {
    return json{{"label", static_cast<double>(ids[0]) / 4 - 2}};  // at most 2.4 from its logit
  });
  expect_golden_steps("regression", one_label(), data);
  EXPECT_EQ(read_json(folder_ / "pp/config.json").at("problem_type"), "regression");
}

// Oracles: the run on one rank, and the run's own evaluation.
TEST_F(Regression, FromAMaskedLm_TrainsResumesAndPredictsOnOtherLayouts) {
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
  EXPECT_EQ(config.at("problem_type"), "regression");
  EXPECT_EQ(config.at("id2label"), (json{{"0", "LABEL_0"}}));
  const json errors = evaluated(o.out, pairs());
  EXPECT_NEAR(errors.at("loss").get<double>(), *steps.back().eval_loss, 1e-9);
  EXPECT_FALSE(steps.back().eval_accuracy);
  EXPECT_EQ(errors.at("rows"), 6);

  PredictOptions predict;
  predict.model = o.out;
  predict.text_file = pairs();
  predict.gemm = "mkl";
  predict.json = true;
  std::istringstream lines(printed([&] { cleave_predict(predict); }));
  const std::vector<double> wanted{4.25, 0.5, 3.75, 1.5, 1, 4.5};
  double squares = 0;
  for (const double number : wanted) {
    std::string line;
    std::getline(lines, line);
    squares += std::pow(json::parse(line).at("score").get<double>() - number, 2);
  }
  EXPECT_NEAR(squares / 6, errors.at("loss").get<double>(), 1e-9);
}

TEST_F(Regression, AdaptersAndTheHead_MergeIntoAModelWithTheSameErrors) {
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
  const json errors = evaluated(folder_ / "adapter", pairs());
  ConvertReport report;
  cleave_convert({.from = folder_ / "adapter", .to = folder_ / "merged"}, report);
  EXPECT_EQ(read_json(folder_ / "merged/config.json").at("problem_type"), "regression");
  const json merged = evaluated(folder_ / "merged", pairs());
  EXPECT_NEAR(merged.at("loss").get<double>(), errors.at("loss").get<double>(), 1e-6);
}

TEST_F(Regression, ModelWithAnotherHead_IsRefused) {
  TrainOptions o = fine_tuning(test::golden_folder("bert-cls"), "run");
  EXPECT_THAT(
      test::thrown_by([&] { cleave_train(o); }).what(),
      HasSubstr("--task regression does not fit this model, which is trained for classify"));
  o.model = one_label();
  o.task = "classify";
  EXPECT_THAT(
      test::thrown_by([&] { cleave_train(o); }).what(),
      HasSubstr("--task classify does not fit this model, which is trained for regression"));
}

// Closed form: x = 1, 2, 4 and y = 2, 2, 5 have deviations (-4, -1, 5) / 3 and (-1, -1, 2).
TEST(ScoreErrors, ThreeNumbers_HaveTheirMeansAndCorrelation) {
  const Tensor predicted = at::tensor({1.0, 2.0, 4.0}, at::kDouble);
  const Tensor wanted = at::tensor({2.0, 2.0, 5.0}, at::kDouble);
  const ScoreErrors errors = score_errors(predicted, wanted);
  EXPECT_NEAR(errors.mean_squared, 2.0 / 3, 1e-15);
  EXPECT_NEAR(errors.mean_absolute, 2.0 / 3, 1e-15);
  EXPECT_NEAR(errors.pearson, 5 / std::sqrt(42.0 / 9 * 6), 1e-15);
  EXPECT_NEAR(score_errors(predicted * 3 - 1, predicted).pearson, 1, 1e-15);
  // 0.1 has a rounding error, so the mean of equal numbers may differ from them.
  const Tensor same = at::full({3}, 0.1, at::kDouble);
  EXPECT_TRUE(std::isnan(score_errors(same, wanted).pearson));
  EXPECT_TRUE(std::isnan(score_errors(wanted, same).pearson));
}

}  // namespace
}  // namespace cleave::regression_test
