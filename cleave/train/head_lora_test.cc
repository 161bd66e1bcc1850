// Adapters beside the head of a classifier, which is trained whole: the modules_to_save of PEFT.
// Most tests begin with a masked LM, whose head is new. Oracle of runs: the run on one rank.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "cleave/checkpoint/convert.h"
#include "cleave/model/model.h"
#include "tests/support/golden.h"
#include "tests/support/lora_runs.h"

namespace cleave::head_lora_test {
namespace {

namespace fs = std::filesystem;

class HeadLora : public test::LoraRuns {
 protected:
  TrainOptions classifier_options(const std::string& out, const std::string& golden,
                                  int num_classes = 3) {
    TrainOptions o = options(out);
    o.model = test::golden_folder(golden);
    o.task = "classify";
    o.lora_targets = {"all-linear"};
    o.schedule = "constant";  // so that a shorter run has the same rates
    o.warmup = 0;
    std::ofstream rows(folder_ / "classes.jsonl");
    for (int row = 0; row < 16; ++row) {
      std::vector<int> ids;
      for (int i = 0; i < 9; ++i) ids.push_back(4 + (row * 7 + i * i) % 13);
      rows << nlohmann::json{{"input_ids", ids}, {"label", row % num_classes}}.dump() << '\n';
    }
    o.data = {folder_ / "classes.jsonl"};
    o.seq_len = 9;
    return o;
  }
};

TEST_F(HeadLora, EveryLayout_HasTheLossesOfOneRank) {
  for (const std::string golden :
       {"bert-mlm", "roberta-mlm", "distilbert-mlm", "llama-mha", "gpt2"}) {
    const auto with = [&](const std::string& name, const auto& change) {
      TrainOptions o = classifier_options(golden + name, golden);
      change(o);
      return o;
    };
    const std::vector<double> want = losses(with("one", [](TrainOptions&) {}));
    EXPECT_NE(want.back(), want.front());
    expect_losses(with("tp", [](TrainOptions& o) { o.tp = 2; }), want);
    expect_losses(with("fsdp",
                       [](TrainOptions& o) {
                         o.dp = 2;
                         o.fsdp = true;
                       }),
                  want);
    expect_losses(with("zero",
                       [](TrainOptions& o) {
                         o.dp = o.tp = 2;
                         o.zero = 1;
                       }),
                  want);
    if (golden == "roberta-mlm") continue;  // has one block
    expect_losses(with("pp", [](TrainOptions& o) { o.pp = 2; }), want);
  }
}

TEST_F(HeadLora, ResumedOnOtherLayouts_HasTheLossesOfOneRank) {
  for (const std::string golden : {"bert-mlm", "distilbert-mlm"}) {
    const std::vector<double> want = losses(classifier_options(golden + "one", golden));
    TrainOptions o = classifier_options(golden + "resumed", golden);
    o.steps = 2;
    losses(o);
    o.resume = true;
    o.tp = 2;
    o.steps = 4;
    losses(o);
    o.tp = 1;
    o.dp = 2;
    o.fsdp = true;
    o.steps = 6;
    const std::vector<double> got = losses(o);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_NEAR(got[4], want[4], 2e-4 * want[4]);
    EXPECT_NEAR(got[5], want[5], 2e-4 * want[5]);
  }
}

// Oracle: W + scale B A in fp64 for an adapted matrix, with the default scale 2, the adapter's own
// tensors for the head, the base model's for the others.
TEST_F(HeadLora, Converted_HasTheMergedBaseAndTheHead) {
  const TrainOptions o = classifier_options("run", "bert-mlm");
  losses(o);
  const std::string merged = folder_ / "merged";
  ConvertReport report;
  cleave_convert({.from = o.out, .to = merged}, report);
  const auto got = test::read_tensors(merged), base = test::read_tensors(o.model);
  const auto adapter = test::read_tensors(o.out + "/adapter_model.safetensors");
  const auto stored = [&](const std::string& name) {
    return adapter.at("base_model.model." + name);
  };
  for (const char* name : {"classifier.weight", "classifier.bias", "bert.pooler.dense.weight"}) {
    EXPECT_TRUE(at::equal(got.at(name), stored(name))) << name;
    EXPECT_FALSE(base.contains(name));
  }
  EXPECT_EQ(got.at("classifier.weight").size(0), 3);
  EXPECT_FALSE(got.contains("cls.predictions.transform.dense.weight"));
  const std::string query = "bert.encoder.layer.1.attention.self.query.";
  const Tensor product = stored(query + "lora_B.weight")
                             .to(at::kDouble)
                             .mm(stored(query + "lora_A.weight").to(at::kDouble));
  const Tensor want = base.at(query + "weight").to(at::kDouble) + 2 * product;
  EXPECT_LE((got.at(query + "weight").to(at::kDouble) - want).abs().max().item<double>(), 1e-6);
  const std::string words = "bert.embeddings.word_embeddings.weight";
  EXPECT_TRUE(at::equal(got.at(words), base.at(words)));
}

// The config.json beside the adapter has the names of the classes. PEFT writes none.
TEST_F(HeadLora, ClassesOfTheHead_AreNamedOrNumbered) {
  const TrainOptions o = classifier_options("run", "roberta-mlm");
  losses(o);
  const fs::path checkpoint = fs::path(o.out) / "step_00000006";
  auto named = nlohmann::json::parse(std::ifstream(checkpoint / "config.json"));
  named["id2label"] = {{"0", "a"}, {"1", "b"}, {"2", "c"}};
  fs::remove(checkpoint / "config.json");
  std::ofstream(checkpoint / "config.json") << named;
  EXPECT_THAT(make_model(ModelFolder::open(o.out).config)->facts().labels,
              testing::ElementsAre("a", "b", "c"));
  fs::create_directory(folder_ / "peft");
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy_file(fs::path(o.out) / file, folder_ / "peft" / file);
  }
  const ModelFolder opened = ModelFolder::open(o.model, (folder_ / "peft").string());
  EXPECT_THAT(make_model(opened.config)->facts().labels,
              testing::ElementsAre("LABEL_0", "LABEL_1", "LABEL_2"));
  const auto config = nlohmann::json::parse(std::ifstream(folder_ / "peft/adapter_config.json"));
  EXPECT_EQ(config.at("modules_to_save"), nlohmann::json{"classifier"});
  EXPECT_EQ(config.at("task_type"), "SEQ_CLS");
}

// As in PEFT, whose modules_to_save has the classifier for the task SEQ_CLS.
TEST_F(HeadLora, HeadOfAClassifier_IsTrainedToo) {
  TrainOptions o = classifier_options("run", "bert-cls", 2);
  const std::vector<double> want = losses(o);
  const auto adapter = test::read_tensors(o.out + "/adapter_model.safetensors");
  const auto base = test::read_tensors(o.model);
  for (const char* name : {"classifier.weight", "classifier.bias"}) {
    const Tensor& trained = adapter.at(str("base_model.model.", name));
    EXPECT_FALSE(at::equal(trained, base.at(name))) << name;
  }
  EXPECT_FALSE(adapter.contains("base_model.model.bert.pooler.dense.weight"));
  const auto config = nlohmann::json::parse(std::ifstream(o.out + "/adapter_config.json"));
  EXPECT_EQ(config.at("modules_to_save"), nlohmann::json{"classifier"});
  TrainOptions wide = classifier_options("wide", "bert-cls", 2);
  wide.tp = wide.pp = 2;
  expect_losses(wide, want);
}

// A new head, and the model's own.
TEST_F(HeadLora, HeadOfADecoder_IsNamedOnce) {
  for (const std::string golden : {"llama-mha", "llama-cls"}) {
    const TrainOptions o = classifier_options(golden, golden);
    losses(o);
    const auto config = nlohmann::json::parse(std::ifstream(o.out + "/adapter_config.json"));
    EXPECT_EQ(config.at("modules_to_save"), nlohmann::json{"score"});
    EXPECT_EQ(config.at("task_type"), "SEQ_CLS");
    EXPECT_TRUE(test::read_tensors(o.out + "/adapter_model.safetensors")
                    .contains("base_model.model.score.weight"));
  }
}

TEST_F(HeadLora, HeadAsATarget_IsRefused) {
  TrainOptions o = classifier_options("run", "bert-mlm");
  o.lora_targets = {"query", "classifier"};
  EXPECT_THAT(error_of(o), testing::HasSubstr("the LoRA target classifier, the head of a "));
}

}  // namespace
}  // namespace cleave::head_lora_test
