#include <fstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/names.h"
#include "cleave/parallel/lora.h"
#include "cleave/train/options.h"
#include "cleave/train/setup.h"
#include "tests/support/paths.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::parameter_groups_test {
namespace {

using test::TempFolder;

constexpr std::string_view kConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":257,
  "hidden_size":16,"intermediate_size":24,"num_hidden_layers":2,"num_attention_heads":2,
  "max_position_embeddings":32})";

TEST(ParameterGroups, Glob_MatchesWholePartsOfAName) {
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  for (const char* glob : {"*", "weight", "*.weight", "model", "model.layers.0", "layers.{0,3}",
                           "model.l*", "up*.weight", "model.*.0.mlp.up_proj.weight"}) {
    EXPECT_TRUE(matches_parts(glob, name)) << glob;
  }
  for (const char* glob : {"", "w", "model.weight", "layers.1", "odel.layers", "model.layers.",
                           "*.bias", "model.layers.0.mlp.up_proj.weight.x"}) {
    EXPECT_FALSE(matches_parts(glob, name)) << glob;
  }
}

TEST(ParameterGroups, LastMatchingGroup_DecidesEachSetting) {
  const auto model = make_model(Json::parse(std::string(kConfig), "config.json"));
  const auto own = parameter_groups(
      {"*:lr-factor=0.5", "*layernorm:weight-decay=0.1,lr-factor=2", "layers.1:lr-factor=0"},
      *model);
  EXPECT_EQ(own.size(), model->parameters().size());
  const auto& embedding = own.at("model.embed_tokens.weight");
  EXPECT_EQ(embedding.lr_factor, 0.5);
  EXPECT_EQ(embedding.weight_decay, std::nullopt);
  const auto& first = own.at("model.layers.0.input_layernorm.weight");
  EXPECT_EQ(first.lr_factor, 2);
  EXPECT_EQ(first.weight_decay, 0.1);
  const auto& second = own.at("model.layers.1.input_layernorm.weight");
  EXPECT_EQ(second.lr_factor, 0);
  EXPECT_EQ(second.weight_decay, 0.1);
}

TEST(ParameterGroups, WrongTexts_AreRefusedWithWhatIsRight) {
  const auto model = make_model(Json::parse(std::string(kConfig), "config.json"));
  const auto message = [&](const std::string& text) {
    const Error error = test::thrown_by([&] { (void)parameter_groups({text}, *model); });
    EXPECT_EQ(error.code(), Code::kUsage);
    return std::string(error.what());
  };
  const std::string form =
      "expected GLOB:SETTING=VALUE,... with the settings lr-factor and weight-decay";
  EXPECT_EQ(message("norm"), "--param-group norm: " + form);
  EXPECT_EQ(message("*:lr=0.1"), "--param-group *:lr=0.1: 'lr=0.1' is not a setting; " + form);
  EXPECT_EQ(message("*:lr-factor"),
            "--param-group *:lr-factor: 'lr-factor' is not a setting; " + form);
  EXPECT_EQ(message("*:lr-factor=0,"),
            "--param-group *:lr-factor=0,: '' is not a setting; " + form);
  EXPECT_EQ(message("*:lr-factor=x"),
            "--param-group *:lr-factor=x: lr-factor is 'x'; expected a number from 0 to 1000");
  EXPECT_EQ(message("*:weight-decay=nan"),
            "--param-group *:weight-decay=nan: weight-decay is 'nan'; expected a number from 0 to "
            "1000");
  EXPECT_EQ(message("model.nrm.weight:lr-factor=0")
                .rfind("--param-group model.nrm.weight:lr-factor=0: no parameter matches "
                       "model.nrm.weight; did you mean 'model.norm.weight'",
                       0),
            0U);
}

TEST(ParameterGroups, GlobOfFrozenWeightsOnly_IsRefused) {
  const auto model = make_model(Json::parse(std::string(kConfig), "config.json"));
  attach_lora(*model, model->sequence(), {.rank = 2, .alpha = 4}, at::kFloat);
  model->name_tree();
  EXPECT_EQ(parameter_groups({"q_proj:lr-factor=2"}, *model).size(), 4U);  // A and B of two layers
  const Error error =
      test::thrown_by([&] { (void)parameter_groups({"norm:lr-factor=2"}, *model); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_EQ(std::string(error.what())
                .rfind("--param-group norm:lr-factor=2: no trained parameter matches norm", 0),
            0U);
}

using Tensors = decltype(test::read_tensors(""));

/// The weights after a run of 3 steps.
Tensors trained(TrainOptions o, const TempFolder& folder, const std::string& name) {
  std::ofstream(folder / "tiny.json") << kConfig;
  o.model = folder / "tiny.json";
  o.data = {test::source_file("LICENSE")};
  o.out = folder / name;
  o.seq_len = 8;
  o.batch_size = 4;
  o.steps = 3;
  o.warmup = 0;
  o.gemm = "mkl";
  o.threads_per_rank = 1;
  cleave_train(o);
  return test::read_tensors(o.out + "/" + checkpoint_name(3) + "/model.safetensors");
}

// Oracles: the initial weights, which a run with rate 0 saves, and one rank.
TEST(ParameterGroups, FrozenParameters_StayOnEveryLayoutAndTheOthersAreThoseOfOneRank) {
  for (const std::string dtype : {"fp64", "bf16"}) {
    const TempFolder folder;
    TrainOptions o;
    o.dtype = dtype;
    o.lr = 0;
    const Tensors initial = trained(o, folder, "initial");
    o.lr = 1e-2;
    o.param_groups = {"model.embed*:lr-factor=0", "layers.1.mlp:lr-factor=0",
                      "norm:lr-factor=3,weight-decay=1"};
    const Tensors one = trained(o, folder, "one");
    std::vector<TrainOptions> layouts(5, o);
    layouts[0].tp = 2;
    layouts[1].pp = 2;
    layouts[2].dp = 2;
    layouts[3].dp = layouts[4].dp = 2;
    layouts[3].zero = 1;
    layouts[4].fsdp = true;
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Tensors got = trained(layouts[i], folder, str("layout", i));
      for (const auto& [name, weight] : initial) {
        const bool is_frozen =
            name == "model.embed_tokens.weight" || name.find("layers.1.mlp.") != std::string::npos;
        EXPECT_EQ(at::equal(got.at(name), weight), is_frozen) << name << " layout " << i;
        if (dtype == "fp64") {
          EXPECT_TRUE(at::allclose(got.at(name), one.at(name), 0, 1e-9)) << name << " layout " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cleave::parameter_groups_test
