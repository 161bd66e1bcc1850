#include "cleave/planner/cluster_search.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "cleave/model/model.h"
#include "cleave/planner/cluster_command.h"
#include "tests/support/thrown.h"

namespace cleave::cluster_search_test {
namespace {

TransformerSize llama_70b() {
  return transformer_size(Json::parse(R"({"model_type": "llama", "vocab_size": 128256,
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8})",
                                      "config.json"));
}

ClusterTask task(int64_t devices, int64_t batch) {
  ClusterTask out;
  out.devices = devices;
  out.run.global_batch = batch;
  out.run.seq_len = 4096;
  out.memory_bytes = cluster_preset("h100-80gb").memory_bytes;
  return out;
}

TEST(ClusterSearch, Best_FitAndUseAllDevicesInOrderOfTime) {
  const Cluster c = cluster_preset("h100-80gb");
  const ClusterPlans plans = search_cluster(c, llama_70b(), task(512, 1024), 10);
  ASSERT_EQ(plans.best.size(), 10U);
  for (size_t i = 0; i < plans.best.size(); ++i) {
    const ClusterPlan& p = plans.best[i];
    EXPECT_EQ(p.run.devices(), 512);
    EXPECT_EQ(refusal(llama_70b(), p.run), "");
    EXPECT_LE(p.cost.memory.total(), c.memory_bytes);
    const ClusterPlan& before = plans.best[i == 0 ? 0 : i - 1];
    EXPECT_GE(p.cost.time.total(), before.cost.time.total());
  }
}

TEST(ClusterSearch, EachLayoutThatDoesNotFit_IsCountedOnce) {
  ClusterTask small = task(64, 64);
  small.memory_bytes = 1;
  const ClusterPlans plans = search_cluster(cluster_preset("h100-80gb"), llama_70b(), small, 10);
  EXPECT_TRUE(plans.best.empty());
  EXPECT_GT(plans.considered, 0);
  EXPECT_EQ(plans.too_large, plans.considered);
  int64_t sum = 0;
  for (const int64_t count : plans.too_large_by) sum += count;
  EXPECT_EQ(sum, plans.too_large);
  EXPECT_EQ(plans.smallest.size(), 1U);
}

TEST(ClusterSearch, MicroBatchGiven_IsTheOnlyOne) {
  ClusterTask one = task(64, 256);
  one.micro_batch = 2;
  const ClusterPlans plans = search_cluster(cluster_preset("h200"), llama_70b(), one, 10);
  ASSERT_FALSE(plans.best.empty());
  for (const ClusterPlan& p : plans.best) EXPECT_EQ(p.run.micro_batch, 2);
}

TEST(ClusterSearch, MicroBatchGiven_MayBeLargerThanThoseTried) {
  ClusterTask large = task(8, 1024);
  large.micro_batch = 128;
  const ClusterPlans plans = search_cluster(cluster_preset("h200"), llama_70b(), large, 10);
  EXPECT_GT(plans.considered, 0);
}

TEST(ClusterSearch, HundredThousandDevices_HaveLayouts) {
  const ClusterPlans plans =
      search_cluster(cluster_preset("h100-80gb"), llama_70b(), task(100000, 20000), 10);
  ASSERT_FALSE(plans.best.empty());
  EXPECT_EQ(plans.best[0].run.devices(), 100000);
}

TEST(ClusterSearch, Flags_AreThoseOfTrain) {
  ClusterRun r;
  r.tp = 2;
  r.pp = 4;
  r.dp = 8;
  r.virtual_stages = 2;
  r.sequence_parallel = true;
  r.sharding = Sharding::kFsdp;
  r.recompute = Keep::kFull;
  EXPECT_EQ(flags_of(r),
            "--tp 2 --pp 4 --dp 8 --micro-batch-size 1 --virtual-pipeline 2 --sequence-parallel "
            "--fsdp --recompute full");
}

TEST(ClusterSearch, WhySlower_NamesTheLargestDifference) {
  ClusterPlan best, slower;
  best.cost.time.gemm = slower.cost.time.gemm = 9;
  best.cost.time.bubble = 1;
  slower.cost.time.bubble = 3;
  slower.cost.time.tp = 0.5;
  EXPECT_EQ(why_slower(best, slower), "25.0 % slower: bubble +2.0 s");
}

TEST(TransformerSize, ConfigOfLlama_HasItsParameters) {
  EXPECT_NEAR(llama_70b().parameters() / 1e9, 70.55, 0.05);
}

/// The number of elements of the model's matrices, which its own layers have.
double matrix_elements(const Json& config) {
  double sum = 0;
  for (const auto& p : make_model(config)->parameters()) {
    if (p->shape().size() > 1) sum += static_cast<double>(p->numel());
  }
  return sum;
}

// Oracle: the layers that the family makes of the same config.json. Published files of these
// families lack some of the keys for KV heads, the size of a head and tied embeddings.
TEST(TransformerSize, ConfigWithoutKeys_HasTheSizesOfItsFamily) {
  for (const std::string type : {"llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral",
                                 "smollm3", "olmo2", "olmo3", "phi3", "gemma2", "gemma3_text"}) {
    const bool has_experts = type == "qwen3_moe" || type == "mixtral";
    const Json config = Json::parse(
        str(R"({"model_type": ")", type, R"(", "vocab_size": 1000, "hidden_size": 1280,
          "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 32,
          "pad_token_id": 0)",
            has_experts ? R"(, "num_local_experts": 4, "num_experts_per_tok": 2})" : "}"),
        "config.json");
    EXPECT_EQ(transformer_size(config).parameters(), matrix_elements(config)) << type;
  }
}

// Oracle as above: the presets. Qwen3's are those whose heads together are wider than the model.
TEST(TransformerSize, Presets_HaveTheMatricesOfTheirLayers) {
  for (const char* name : {"llama3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "qwen3-4b", "qwen3-32b",
                           "qwen3-30b-a3b", "mistral-7b", "mixtral-8x7b", "smollm3-3b", "olmo2-1b",
                           "olmo3-7b", "phi3-mini", "gemma2-2b", "gemma3-1b"}) {
    const Json config = preset_config(name, 0);
    EXPECT_EQ(transformer_size(config).parameters(), matrix_elements(config)) << name;
  }
}

TransformerSize mixtral() {
  return transformer_size(Json::parse(R"({"model_type": "mixtral", "vocab_size": 32000,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2})",
                                      "config.json"));
}

// Mixtral 8x7B is published with 46.7 billion parameters, of which a token uses 12.9.
TEST(TransformerSize, ConfigWithExperts_HasThePublishedParameters) {
  EXPECT_NEAR(mixtral().parameters() / 1e9, 46.7, 0.05);
  const double embedding = 32000.0 * 4096;
  EXPECT_NEAR((mixtral().train_flops_per_token(0) / 6 + embedding) / 1e9, 12.9, 0.05);
}

/// The sizes of a Qwen3-MoE with four layers of width 64, whose MLP has a width of 96.
TransformerSize qwen(const std::string& more) {
  return transformer_size(Json::parse(R"({"model_type": "qwen3_moe", "vocab_size": 40,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2)" + more + "}",
                                      "config.json"));
}

// Oracle: the defaults of the families' configs in transformers.
TEST(TransformerSize, ConfigWithoutKeysOfExperts_HasTheFamilysDefaults) {
  const TransformerSize of_mixtral =
      transformer_size(Json::parse(R"({"model_type": "mixtral", "vocab_size": 40,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 8})",
                                   "config.json"));
  EXPECT_EQ(of_mixtral.experts, 8);
  EXPECT_EQ(of_mixtral.top_k, 2);
  EXPECT_EQ(of_mixtral.ffn, 96);
  EXPECT_EQ(qwen("").experts, 128);
  EXPECT_EQ(qwen("").top_k, 8);
  EXPECT_EQ(qwen("").ffn, 768);
}

TEST(TransformerSize, LayersWithAndWithoutExperts_AreRefused) {
  for (const char* mixed : {R"(, "decoder_sparse_step": 2)", R"(, "mlp_only_layers": [1, 3])"}) {
    const Error error = test::thrown_by([&] { qwen(mixed); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("experts in 2 of 4 layers"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(qwen(R"(, "mlp_only_layers": [0, 1, 2, 3])").experts, 0);
  EXPECT_EQ(qwen(R"(, "mlp_only_layers": [0, 1, 2, 3])").ffn, 96);
}

/// The size of a model of a family that Cleave does not train.
TransformerSize other(const std::string& more) {
  return transformer_size(Json::parse(R"({"model_type": "other", "vocab_size": 40,
      "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
      "num_attention_heads": 4)" + more + "}",
                                      "config.json"));
}

// Keys of DeepSeek-V3's config: its experts must not be left out without a word.
TEST(TransformerSize, ExpertsUnderOtherKeys_AreRefused) {
  for (const char* experts : {R"(, "n_routed_experts": 256, "num_experts_per_tok": 8)",
                              R"(, "num_experts_per_tok": 8)"}) {
    const Error error = test::thrown_by([&] { other(experts); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_NE(std::string(error.what()).find("num_local_experts"), std::string::npos);
  }
  EXPECT_EQ(other("").experts, 0);
  EXPECT_EQ(other(R"(, "n_routed_experts": null)").experts, 0);
  EXPECT_EQ(other(R"(, "num_local_experts": 0, "num_experts_per_tok": 2)").experts, 0);
}

TEST(TransformerSize, OtherFamiliesExperts_AreReadByTheSameKeys) {
  EXPECT_EQ(other("").experts, 0);
  EXPECT_EQ(other(R"(, "num_experts": 0)").experts, 0);
  const TransformerSize six = other(R"(, "num_experts": 6, "num_experts_per_tok": 3)");
  EXPECT_EQ(six.experts, 6);
  EXPECT_EQ(six.top_k, 3);
  EXPECT_EQ(six.ffn, 96);
  EXPECT_THROW(other(R"(, "num_experts": 6)"), Error);
}

TEST(ClusterSearch, Experts_AreSharedOutByWhatDividesThemAndDp) {
  const ClusterPlans plans =
      search_cluster(cluster_preset("h200"), mixtral(), task(64, 256), 1 << 20);
  std::set<int> seen;
  for (const ClusterPlan& p : plans.best) {
    seen.insert(p.run.ep);
    EXPECT_EQ(p.run.dp % p.run.ep, 0);
  }
  EXPECT_EQ(seen, (std::set<int>{1, 2, 4, 8}));
  ClusterRun run;
  run.dp = run.ep = 4;
  EXPECT_EQ(flags_of(run), "--tp 1 --pp 1 --dp 4 --micro-batch-size 1 --ep 4");
}

TEST(TransformerSize, ConfigWhoseHeadsDoNotDivide_IsRefused) {
  const auto parse = [](const std::string& heads, const std::string& kv_heads) {
    return transformer_size(
        Json::parse(R"({"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 8,
      "num_attention_heads": )" +
                        heads + R"(, "num_key_value_heads": )" + kv_heads + "}",
                    "config.json"));
  };
  EXPECT_EQ(parse("8", "2").head_dim, 8);
  EXPECT_THROW(parse("8", "3"), Error);
  EXPECT_THROW(parse("128", "128"), Error);
}

TEST(Tokens, AreReadAsPeopleWriteThem) {
  EXPECT_EQ(tokens_from_text("300B"), 300e9);
  EXPECT_EQ(tokens_from_text("15T"), 15e12);
  EXPECT_EQ(tokens_from_text("2e12"), 2e12);
  for (const char* wrong : {"", "B", "15X", "-3B", "15TB", "0"}) {
    EXPECT_THROW(tokens_from_text(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace cleave::cluster_search_test
