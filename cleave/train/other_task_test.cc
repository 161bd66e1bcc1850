// Fine-tuning a folder's model for another task: a language model becomes a classifier.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/comm/api/world.h"
#include "cleave/model/bert/bert.h"
#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "cleave/train/setup.h"
#include "cleave/train/summary.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/saved_models.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::other_task_test {
namespace {

using test::losses;
using test::TempFolder;
using test::thrown_by;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const std::vector<std::string> kClasses = {"bad", "good", "odd"};

/// test::kBertConfig with `from` replaced by `by`.
std::string replaced(std::string_view from, std::string_view by) {
  std::string config(test::kBertConfig);
  return config.replace(config.find(from), from.size(), by);
}

Json classifier(std::string_view config = test::kBertConfig) {
  return classifier_config(Json::parse(config, "config.json"), kClasses);
}

std::map<std::string, Tensor> starting_values(const Json& config, uint64_t seed) {
  const auto whole = make_model(config);
  materialize(*whole, {.seed = seed});
  std::map<std::string, Tensor> out;
  for (const auto& p : whole->parameters()) out[p->name()] = p->leaf().detach();
  return out;
}

/// Loads a folder into a classifier on three ranks. Weights in `fresh` are newly initialized,
/// others are the folder's. Oracle: the closed form in the files, and a new classifier on one rank.
void expect_loads(const std::string& path, const std::set<std::string>& fresh,
                  const std::set<std::string>& left_out, const std::string& prefix = "",
                  const Json& config = classifier()) {
  const auto starting = starting_values(config, 7);
  test::on_layout({3, 1}, [&](const Writers& writers) {
    auto model = make_model(config);
    parallelize_module(*model, writers.tp, model->plan());
    const LoadResult loaded = load_for_other_task(*model, ModelFolder::open(path), at::kFloat, 7);
    EXPECT_EQ(loaded.fresh, fresh);
    EXPECT_EQ(loaded.left_out, left_out);
    for (const auto& p : model->parameters()) {
      const Tensor want = fresh.contains(p->name())
                              ? starting.at(p->name())
                              : test::closed_form(p->name().substr(prefix.size()), p->shape());
      EXPECT_TRUE(at::equal(p->leaf(), test::slice_of(*p, want))) << p->name();
    }
  });
}

const std::set<std::string> kHead = {"classifier.bias", "classifier.weight"};
const std::set<std::string> kHeadAndPooler = {"bert.pooler.dense.bias", "bert.pooler.dense.weight",
                                              "classifier.bias", "classifier.weight"};
const std::set<std::string> kWords = {
    "cls.predictions.bias", "cls.predictions.transform.LayerNorm.bias",
    "cls.predictions.transform.LayerNorm.weight", "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.dense.weight"};

TEST(LoadForOtherTask, MaskedLm_GivesItsEncoderAndAFreshHeadOnEveryRank) {
  const TempFolder folder;
  test::write_model_folder(folder / "m", test::kBertConfig, test::tensors_of(test::kBertConfig));
  expect_loads(folder / "m", kHeadAndPooler, kWords);
}

TEST(LoadForOtherTask, MaskedLmOfRoberta_GivesItsEncoderAndAFreshHead) {
  auto json = nlohmann::json::parse(test::kBertConfig);
  json.update({{"model_type", "roberta"}, {"architectures", {"RobertaForMaskedLM"}}});
  const std::string config = json.dump();
  const TempFolder folder;
  test::write_model_folder(folder / "m", config, test::tensors_of(config));
  expect_loads(folder / "m",
               {"classifier.dense.bias", "classifier.dense.weight", "classifier.out_proj.bias",
                "classifier.out_proj.weight"},
               {"lm_head.bias", "lm_head.dense.bias", "lm_head.dense.weight",
                "lm_head.layer_norm.bias", "lm_head.layer_norm.weight"},
               "", classifier(config));
}

// As in bert-base-uncased: a masked-LM config, but the file has a pooler.
TEST(LoadForOtherTask, PoolerInTheFile_IsRead) {
  const TempFolder folder;
  auto tensors = test::tensors_of(test::kBertConfig);
  tensors.push_back({"bert.pooler.dense.weight", DType::kF32, {24, 24}});
  tensors.push_back({"bert.pooler.dense.bias", DType::kF32, {24}});
  test::write_model_folder(folder / "m", test::kBertConfig, tensors);
  expect_loads(folder / "m", kHead, kWords);
}

TEST(LoadForOtherTask, Decoder_GivesItsLayersAndAFreshHead) {
  for (const std::string_view config : {test::kLlamaConfig, test::kGpt2Config}) {
    const TempFolder folder;
    test::write_model_folder(folder / "m", config, test::tensors_of(config));
    const bool is_tied = config == test::kGpt2Config;  // the head has no tensor of its own
    expect_loads(folder / "m", {"score.weight"},
                 is_tied ? std::set<std::string>() : std::set<std::string>{"lm_head.weight"}, "",
                 classifier(config));
  }
}

TEST(LoadForOtherTask, ModelWithoutAHead_LacksOnlyTheClassifier) {
  const TempFolder folder;
  const std::string config = replaced("BertForMaskedLM", "BertModel");
  test::write_model_folder(folder / "m", config, test::tensors_of(config));
  auto fresh = kHead;
  // Its files omit the prefix "bert.", and closed_form depends on the name.
  expect_loads(folder / "m", fresh, {}, "bert.");
}

// Oracle: W + scale B A by torch in fp64, with scale = 4 / 2.
TEST(LoadForOtherTask, AdapterWithAHead_IsMergedWithoutIt) {
  const TempFolder folder;
  const auto tensors = test::tensors_of(test::kBertConfig);
  test::write_model_folder(folder / "m", test::kBertConfig, tensors);
  const std::string layer = "bert.encoder.layer.1.output.dense.";
  const std::string head = "cls.predictions.transform.dense.";
  std::vector<TensorInfo> low;
  for (const TensorInfo& t : tensors) {
    if (t.name != layer + "weight" && t.name != head + "weight") continue;
    const std::string stem = "base_model.model." + t.name.substr(0, t.name.rfind('.'));
    low.push_back({stem + ".lora_A.weight", DType::kF32, {2, t.shape[1]}});
    low.push_back({stem + ".lora_B.weight", DType::kF32, {t.shape[0], 2}});
  }
  ASSERT_EQ(low.size(), 4U);
  test::write_model_folder(folder / "a", "{}", low);
  std::filesystem::rename(folder / "a/model.safetensors", folder / "a/adapter_model.safetensors");
  std::ofstream(folder / "a/adapter_config.json") << R"({"r": 2, "lora_alpha": 4})";
  const auto model = make_model(classifier());
  const LoadResult loaded =
      load_for_other_task(*model, ModelFolder::open(folder / "m", folder / "a"), at::kFloat, 7);
  EXPECT_EQ(loaded.fresh, kHeadAndPooler);
  EXPECT_TRUE(loaded.left_out.contains("base_model.model." + head + "lora_A.weight"));
  for (const auto& p : model->parameters()) {
    if (loaded.fresh.contains(p->name())) continue;
    Tensor want = test::closed_form(p->name(), p->shape()).to(at::kDouble);
    if (p->name() == layer + "weight") {
      const auto factor = [&](const char* side, std::vector<int64_t> shape) {
        return test::closed_form("base_model.model." + layer + side, shape).to(at::kDouble);
      };
      want = want + 2 * factor("lora_B.weight", {p->shape()[0], 2})
                            .matmul(factor("lora_A.weight", {2, p->shape()[1]}));
    }
    EXPECT_LE(test::largest_difference(p->leaf(), want), 1e-6) << p->name();
  }
}

TEST(LoadForOtherTask, FileThatLacksAnEncoderWeight_IsRefused) {
  const TempFolder folder;
  auto tensors = test::tensors_of(test::kBertConfig);
  std::erase_if(tensors, [](const TensorInfo& t) {
    return t.name == "bert.encoder.layer.1.output.dense.bias";
  });
  test::write_model_folder(folder / "m", test::kBertConfig, tensors);
  auto model = make_model(classifier());
  const Error error = thrown_by(
      [&] { load_for_other_task(*model, ModelFolder::open(folder / "m"), at::kFloat, 7); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("1 missing: bert.encoder.layer.1.output.dense.bias"));
}

/// Labelled rows of ids of unequal lengths, which need no tokenizer.
std::string rows_file(const TempFolder& folder) {
  const std::string path = folder / "rows.jsonl";
  std::ofstream out(path);
  for (int row = 0; row < 12; ++row) {
    out << R"({"input_ids": [)" << 3 + row % 5 << ", " << 9 + row % 7 << ", " << 20 + row
        << (row % 2 == 0 ? ", 6, 7" : "") << R"(, 4], "label": )" << row % 3 << "}\n";
  }
  return path;
}

TrainOptions fine_tuning(const std::string& model, const std::string& data,
                         const std::string& out) {
  TrainOptions o;
  o.model = model;
  o.task = "classify";
  o.data = {data};
  o.out = out;
  o.seq_len = 8;
  o.batch_size = 4;
  o.steps = 6;
  o.lr = 1e-2;
  o.dtype = "fp64";
  o.seed = 11;
  o.gemm = "mkl";
  o.threads_per_rank = 1;
  return o;
}

/// A model's config.json, and the class that it becomes.
struct Start {
  std::string_view config;
  std::string classifier;
};

class ClassifierFromLanguageModel : public testing::TestWithParam<Start> {};

// Oracle: the run on one rank. In fp64 only the order of sums differs.
TEST_P(ClassifierFromLanguageModel, AnyLayout_TrainsAsOneRankDoesAndResumes) {
  const TempFolder folder;
  const std::string root = folder.path(), data = rows_file(folder);
  const std::string_view start = GetParam().config;
  test::write_model_folder(root + "/m", start, test::tensors_of(start));
  const auto want = losses(fine_tuning(root + "/m", data, root + "/one"));
  ASSERT_EQ(want.size(), 6U);
  EXPECT_NE(want.back(), want.front());
  const auto expect_same = [&](const std::string& name, TrainOptions o) {
    o.out = root + "/" + name;
    const auto got = losses(o);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-9) << name << i;
  };
  TrainOptions o = fine_tuning(root + "/m", data, "");
  o.tp = 3;
  o.sequence_parallel = true;
  expect_same("tp", o);
  o = fine_tuning(root + "/m", data, "");
  o.pp = 2;
  expect_same("pp", o);
  o = fine_tuning(root + "/m", data, "");
  o.dp = 2;
  o.zero = 1;
  expect_same("zero", o);
  o.zero = 0;
  o.fsdp = true;
  o.tp = 2;
  expect_same("fsdp", o);

  // The checkpoint is an ordinary classifier's and names its classes.
  const Json config = Json::parse_file(root + "/fsdp/step_00000006/config.json");
  EXPECT_EQ(config.at("architectures").at(0).as_string(), GetParam().classifier);
  EXPECT_THAT(make_model(config)->facts().labels, ElementsAre("LABEL_0", "LABEL_1", "LABEL_2"));
  TrainOptions resumed = fine_tuning("", data, root + "/fsdp");
  resumed.model = TrainOptions{}.model;
  resumed.resume = true;
  resumed.steps = 8;
  cleave_train(resumed);
  EXPECT_EQ(read_metrics(resumed.out + "/metrics.jsonl").size(), 8U);
}

INSTANTIATE_TEST_SUITE_P(Families, ClassifierFromLanguageModel,
                         testing::Values(Start{test::kBertConfig, "BertForSequenceClassification"},
                                         Start{test::kLlamaConfig,
                                               "LlamaForSequenceClassification"},
                                         Start{test::kGpt2Config, "GPT2ForSequenceClassification"}),
                         [](const auto& start) { return start.param.classifier; });

/// What `train --task TASK` says of a folder with this config.json.
std::string refusal(const std::string& config, const std::string& task) {
  const TempFolder folder;
  test::write_model_folder(folder / "m", config, test::tensors_of(config));
  TrainOptions o = fine_tuning(folder / "m", rows_file(folder), folder / "out");
  o.task = task;
  const Error error = thrown_by([&] { make_setup(o, 0); });
  EXPECT_EQ(error.code(), Code::kUsage);
  return error.what();
}

TEST(TaskOfAFolder, TaskThatTheFamilyLacks_IsRefused) {
  EXPECT_THAT(refusal(std::string(test::kLlamaConfig), "mlm"),
              HasSubstr("--task mlm does not fit this model, which is trained for lm; leave it "
                        "out, or give another --model"));
}

TEST(TaskOfAFolder, ClassifierFromAConfigWithoutAClass_IsRefusedWithTheKey) {
  auto json = nlohmann::json::parse(test::kLlamaConfig);
  json.erase("architectures");
  EXPECT_THAT(refusal(json.dump(), "classify"),
              HasSubstr("--task classify needs the name of the model's class in its config.json"));
}

TEST(TaskLine, ManyNames_AreCountedAndShortened) {
  const auto model = make_model(classifier());
  EXPECT_EQ(task_line(*model, {.fresh = kHeadAndPooler, .left_out = {"cls.predictions.bias"}}),
            "task    classify: 4 of 41 weights are newly initialized (bert.pooler.dense.bias, "
            "bert.pooler.dense.weight, classifier.bias and 1 more), 1 tensor of the folder is not "
            "used (cls.predictions.bias)");
}

// Oracle: the hidden states of the masked-LM model; golden_test.cc compares its scores with those
// of transformers. Bit for bit, since the layers and the order of their sums are the same.
TEST(ClassifierFromMaskedLm, RecordedModel_KeepsItsHiddenStates) {
  const ModelFolder from = ModelFolder::open(test::golden_folder("bert-mlm"));
  const auto words = make_model(from.config);
  load_model(*words, from, at::kFloat);
  const auto fine_tuned = make_model(classifier_config(from.config, kClasses));
  load_for_other_task(*fine_tuned, from, at::kFloat, 3);
  const Tensor ids = test::ids({3, 9}, 96, 5);
  const auto hidden = [&](Model& model) {
    return dynamic_cast<Bert&>(model).hidden(DTensor(ids, Axis(), Replicate{}), Context()).local();
  };
  const Tensor want = hidden(*words);
  EXPECT_GT(want.abs().max().item<double>(), 0.1);
  EXPECT_TRUE(at::equal(hidden(*fine_tuned), want));
}

}  // namespace
}  // namespace cleave::other_task_test
