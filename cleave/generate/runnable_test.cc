#include "cleave/generate/runnable.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/save.h"
#include "cleave/planner/cpu_memory.h"
#include "tests/support/ranks.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"

namespace cleave {
namespace {

// Wide enough that matrices outweigh the table and the padding of 8-bit rows.
constexpr std::string_view kConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "vocab_size":50,"hidden_size":192,"intermediate_size":256,"num_hidden_layers":4,
  "num_attention_heads":6,"num_key_value_heads":2,"max_position_embeddings":64})";

/// Logits of a folder's model with 8-bit weights, and the most bytes that loading took.
std::pair<Tensor, int64_t> run_int8(const std::string& folder, const Axis& tp = {}) {
  const Runnable runnable(folder, "int8", "cpu");
  const CpuMemory memory;
  const auto model = runnable.load(tp);
  const int64_t peak = memory.peak();
  const at::NoGradGuard no_grad;
  DTensor x(at::arange(8).view({1, 8}), tp, Replicate{});
  for (Layer* layer : model->sequence()) x = (*layer)(x, Context());
  return {x.full_tensor(), peak};
}

/// A folder below `root` with a new model of this config.
std::string saved_model(const test::TempFolder& root, const std::string& name) {
  const Axis one;
  const test::Training training(one, at::kFloat, kConfig);
  Checkpoint checkpoint = training.checkpoint(1);
  checkpoint.optimizer = nullptr;
  save_checkpoint(root / name, checkpoint, {one, one, one});
  return root / name;
}

// A scale is that of a whole row, whichever rank has its largest number, so the bytes are those of
// one rank. Sums of ranks are added in another order, which may move a byte of an activation by
// one.
TEST(Runnable, Int8OnAnyRanks_GivesTheLogitsOfOne) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  const Tensor want = run_int8(folder).first;
  const double size = want.abs().max().item<double>();
  for (const int tp : {2, 3}) {
    test::on_ranks(tp, [&](const Axis& axis) {
      const Tensor got = run_int8(folder, axis).first;
      EXPECT_LE((got - want).abs().max().item<double>(), 1e-5 * size) << "tp=" << tp;
    });
  }
}

// fp16 holds these weights exactly. What is read is there before what is made of it.
TEST(Runnable, Int8OfFp16Files_IsThatOfFp32FilesAndLoadsInLessMemory) {
  const test::TempFolder folder;
  const Axis one;
  const test::Training training(one, at::kFloat, kConfig);
  for (const auto& [name, type] : {std::pair{"fp16", at::kHalf}, std::pair{"fp32", at::kFloat}}) {
    Checkpoint checkpoint = training.checkpoint(1);
    checkpoint.optimizer = nullptr;
    checkpoint.dtype = type;
    save_checkpoint(folder / name, checkpoint, {one, one, one});
  }
  const auto [want, most] = run_int8(folder / "fp32");
  const auto [got, peak] = run_int8(folder / "fp16");
  EXPECT_TRUE(at::equal(got, want));
  int64_t weights = 0;
  for (const auto& p : training.model->parameters()) weights += p->numel();
  EXPECT_LT(peak, most - weights);  // two bytes less each, but for the largest while it is made
}

// transformers 5.23.0: a generation_config.json that names no end leaves none, whatever
// config.json says; config.json decides only where there is no such file.
TEST(Runnable, EndIds_AreThoseOfTheGenerationConfigAlone) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  auto config = nlohmann::ordered_json::parse(kConfig);
  config["eos_token_id"] = 2;
  std::ofstream(folder + "/config.json") << config;
  const auto ids_with = [&](const char* text) {
    std::ofstream(folder + "/generation_config.json") << text;
    return Runnable(folder, "", "cpu").eos_ids();
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(Runnable(folder, "", "cpu").eos_ids(), Ids{2});
  EXPECT_EQ(ids_with("{}"), Ids{});
  EXPECT_EQ(ids_with(R"({"eos_token_id": null})"), Ids{});
  EXPECT_EQ(ids_with(R"({"eos_token_id": [3, 4]})"), (Ids{3, 4}));
}

// LlamaConfig of transformers 5.23.0 has eos_token_id = 2 where config.json lacks the key.
TEST(Runnable, EndIdsWithoutTheKey_AreTheFamilysDefault) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  const auto ids_with = [&](const nlohmann::ordered_json& change) {
    auto config = nlohmann::ordered_json::parse(kConfig);
    config.erase("eos_token_id");
    config.update(change);
    std::ofstream(folder + "/config.json") << config;
    return Runnable(folder, "", "cpu").eos_ids();
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(ids_with(nlohmann::ordered_json::object()), Ids{2});
  EXPECT_EQ(ids_with({{"eos_token_id", nullptr}}), Ids{});
}

}  // namespace
}  // namespace cleave
