#include "cleave/verify/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>

#include "cleave/mesh/mesh.h"
#include "cleave/nn/cross_entropy.h"
#include "tests/support/faulty_model.h"
#include "tests/support/golden.h"
#include "tests/support/gpus.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

// Oracle: the name of the layer with the injected fault.
namespace cleave::verify_test {
namespace {

using test::Fault;
using test::FaultyModel;
using test::thrown_by;

VerifySettings settings_at(int tp) {
  return {.tp = tp, .num_tokens = 7, .num_new_tokens = 3, .threads_per_rank = 1, .timeout_s = 20};
}

VerifyReport verified(const test::FaultyOptions& options, const VerifySettings& settings) {
  return verify_model([&] { return std::make_unique<FaultyModel>(options); }, settings);
}
VerifyReport verified(Fault fault, const VerifySettings& settings) {
  return verified(test::FaultyOptions{.fault = fault}, settings);
}

/// "LAYER: QUANTITY" of the first difference; "" when all agree.
std::string first_of(const VerifyReport& report) {
  const VerifiedPart* part = report.first_difference();
  return part == nullptr ? "" : part->name + ": " + part->first_difference()->quantity();
}

const VerifiedPart& part_of(const VerifyReport& report, const std::string& name) {
  for (const VerifiedPart& part : report.parts) {
    if (part.name == name) return part;
  }
  throw Error(Code::kBug, "no part " + name);
}

TEST(Verify, HealthyModel_AgreesOnEveryLayout) {
  for (const auto& [tp, dp] : std::vector<std::pair<int, int>>{{1, 2}, {2, 1}, {3, 1}, {2, 2}}) {
    VerifySettings settings = settings_at(tp);
    settings.dp = dp;
    const VerifyReport report = verified(Fault::kNone, settings);
    EXPECT_EQ(first_of(report), "") << "tp " << tp << " dp " << dp;
    EXPECT_NO_THROW(part_of(report, "a training step with dropout"));
  }
}

// As a run with --keep-last does with the checkpoint that is verified.
TEST(Verify, FolderThatIsRemovedBeforeItsWeightsAreRead_IsNamedInTheError) {
  const test::TempFolder folder;
  const std::string model = folder / "step_00000002";
  std::filesystem::copy(test::golden_folder("llama-gqa-tied"), model);
  VerifySettings settings = settings_at(2);
  settings.weights = ModelFolder::open(model);
  std::filesystem::remove_all(model);
  const Error error = thrown_by(
      [&] { (void)verify_model([&] { return make_model(settings.weights->config); }, settings); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_NE(std::string(error.what()).find(model + " was removed while it was read"),
            std::string::npos)
      << error.what();
}

// A cross entropy of one class would be 0 and have no gradient.
TEST(Verify, ModelWithOneLabel_IsComparedByItsSquaredErrors) {
  const Json config = Json::parse(R"({"model_type": "bert", "vocab_size": 31, "hidden_size": 12,
      "architectures": ["BertForSequenceClassification"], "num_hidden_layers": 1, "num_labels": 1,
      "num_attention_heads": 3, "intermediate_size": 10, "max_position_embeddings": 16})",
                                  "config.json");
  for (const auto& [tp, dp] : std::vector<std::pair<int, int>>{{3, 1}, {2, 2}}) {
    VerifySettings settings = settings_at(tp);
    settings.dp = dp;
    const VerifyReport report = verify_model([&] { return make_model(config); }, settings);
    EXPECT_EQ(first_of(report), "") << tp;
    const auto& values = part_of(report, "a training step").values;
    const auto loss = std::ranges::find(values, Comparison::Of::kLoss, &Comparison::of);
    ASSERT_NE(loss, values.end());
    EXPECT_GT(loss->whole, 0.01);
  }
}

// Shards of three classes are uneven, and so are the rows of two ranks.
TEST(Verify, ModelForSeveralClasses_IsComparedByItsBinaryCrossEntropies) {
  const Json config = Json::parse(R"({"model_type": "bert", "vocab_size": 31, "hidden_size": 12,
      "architectures": ["BertForSequenceClassification"], "num_hidden_layers": 1, "num_labels": 3,
      "num_attention_heads": 3, "intermediate_size": 10, "max_position_embeddings": 16,
      "problem_type": "multi_label_classification"})",
                                  "config.json");
  VerifySettings settings = settings_at(2);
  settings.dp = 2;
  const VerifyReport report = verify_model([&] { return make_model(config); }, settings);
  EXPECT_EQ(first_of(report), "");
  const auto& values = part_of(report, "a training step").values;
  const auto loss = std::ranges::find(values, Comparison::Of::kLoss, &Comparison::of);
  ASSERT_NE(loss, values.end());
  EXPECT_GT(loss->whole, 0.01);
}

VerifyReport verified_mixtral(const VerifySettings& settings) {
  const Json config = Json::parse_file(test::golden_folder("mixtral") + "/config.json");
  return verify_model([&] { return make_model(config); }, settings);
}

TEST(Verify, SharedOutExperts_Agree) {
  for (const auto& [tp, dp, ep] :
       std::vector<std::array<int, 3>>{{1, 2, 2}, {1, 3, 3}, {1, 4, 2}, {2, 2, 2}}) {
    VerifySettings settings = settings_at(tp);
    settings.dp = dp;
    settings.ep = ep;
    const VerifyReport report = verified_mixtral(settings);
    EXPECT_EQ(first_of(report), "") << "tp " << tp << " dp " << dp << " ep " << ep;
    // Every expert is compared, whichever rank has it.
    for (const VerifiedPart& part : report.parts) {
      for (const Comparison& c : part.values) {
        const bool is_weight = c.of == Comparison::Of::kStart || c.of == Comparison::Of::kStepped;
        EXPECT_TRUE(!is_weight || !c.at.empty()) << c.quantity();
      }
    }
    for (const int expert : {0, 4}) {
      const VerifiedPart& part =
          part_of(report, str("model.layers.0.block_sparse_moe.experts.", expert, ".w1"));
      EXPECT_FALSE(part.values.front().at.empty()) << expert;
    }
    EXPECT_EQ(part_of(report, "model.layers.0.block_sparse_moe").bytes > 0, tp > 1);
  }
}

TEST(Verify, NormThatLeavesOutOtherRanksExperts_IsNamed) {
  VerifySettings settings = settings_at(1);
  settings.dp = settings.ep = 2;
  settings.norm = [](const Parameters& parameters, const Axis& /*tp*/) {
    double squares = 0;
    for (const auto& p : parameters) {
      if (p->is_here()) squares += p->leaf().grad().square().sum().item<double>();
    }
    return std::sqrt(squares);
  };
  EXPECT_EQ(first_of(verified_mixtral(settings)),
            "model.layers.0.block_sparse_moe: norm of the gradients");
}

TEST(Verify, RanksThatCannotShareOutExperts_AreRefused) {
  VerifySettings settings = settings_at(1);
  settings.dp = 3;
  settings.ep = 2;
  EXPECT_EQ(thrown_by([&] { verified(Fault::kNone, settings); }).code(), Code::kShape);
  settings.dp = 2;
  EXPECT_EQ(thrown_by([&] { verified(Fault::kNone, settings); }).code(), Code::kShape);
}

TEST(Verify, ModelOnAGpu_MatchesTheModelOnTheCpu) {
  SKIP_WITHOUT_GPUS(1);
  VerifySettings settings = settings_at(1);
  settings.device = "cuda";
  EXPECT_EQ(first_of(verified(Fault::kNone, settings)), "");
}

TEST(Verify, BiasAddedOnEveryRank_IsNamed) {
  for (const int tp : {2, 3}) {
    const VerifyReport report = verified(Fault::kBiasOnEveryRank, settings_at(tp));
    EXPECT_EQ(first_of(report), "second.down: output");
    const Comparison& c = part_of(report, "second.down").values.front();
    EXPECT_GT(c.distance, 1e6 * c.bound);
    EXPECT_NEAR(std::abs(c.split - c.whole), c.distance, 1e-12);
    // The layer before it agrees; the block that contains it differs too.
    EXPECT_EQ(part_of(report, "second.up").first_difference(), nullptr);
    EXPECT_NE(part_of(report, "second").first_difference(), nullptr);
  }
}

TEST(Verify, WrongSliceOfFusedQkv_IsNamed) {
  for (const int tp : {2, 3}) {
    EXPECT_EQ(first_of(verified(Fault::kQkvSlice, settings_at(tp))), "second.attn: output");
  }
}

TEST(Verify, MissingAllReduceInBackward_IsNamed) {
  for (const int tp : {2, 3}) {
    EXPECT_EQ(first_of(verified(Fault::kNoAllReduce, settings_at(tp))),
              "second.up: gradient of the input");
  }
}

TEST(Verify, WeightDetachedOnSeveralRanks_IsNamed) {
  for (const int tp : {2, 3}) {
    EXPECT_EQ(first_of(verified(Fault::kDetachedWeight, settings_at(tp))),
              "second.up: gradient of second.up.weight");
  }
}

TEST(Verify, GatherWithTheWrongBackward_IsNamed) {
  for (const int tp : {2, 3}) {
    const VerifyReport report = verified(Fault::kGatherBackward, settings_at(tp));
    EXPECT_EQ(first_of(report), "gather: gradient of the input");
    const Comparison& c = *part_of(report, "gather").first_difference();
    EXPECT_NEAR(c.split, tp * c.whole, 1e-9);
  }
}

TEST(Verify, WrongMapOfKvHeads_IsNamed) {
  for (const int tp : {2, 3}) {
    // With these sizes, rank 1's first head is inside a group.
    const int64_t kv_heads = tp == 2 ? 3 : 2;
    const test::FaultyOptions options{.fault = Fault::kKvHeadMap, .kv_heads = kv_heads};
    EXPECT_EQ(first_of(verified(options, settings_at(tp))), "second.grouped: output");
  }
}

TEST(Verify, DropoutThatCountsFromZeroOnEveryRank_IsNamed) {
  for (const int tp : {2, 3}) {
    EXPECT_EQ(first_of(verified(Fault::kLocalDropout, settings_at(tp))),
              "second.drop with dropout: output");
  }
}

TEST(Verify, NormThatCountsReplicasTwice_IsNamedAtALayerWithReplicas) {
  for (const int tp : {2, 3}) {
    VerifySettings settings = settings_at(tp);
    settings.norm = [](const Parameters& parameters, const Axis& axis) {
      double squares = 0;
      for (const auto& p : parameters) {
        squares += p->leaf().grad().square().sum().item<double>();
      }
      return std::sqrt(
          axis.all_reduce(at::scalar_tensor(squares, at::kDouble), "norm").item<double>());
    };
    EXPECT_EQ(first_of(verified(Fault::kNone, settings)), "first.norm: norm of the gradients");
  }
}

TEST(Verify, SmoothingOverTheLocalVocabulary_IsAFaultOfTheLoss) {
  // Without the gather at the end, the loss gets sharded logits.
  class WithoutGather : public FaultyModel {
   public:
    using FaultyModel::FaultyModel;
    std::vector<Layer*> sequence() override {
      auto all = FaultyModel::sequence();
      all.pop_back();
      return all;
    }
  };
  const auto make = [] { return std::make_unique<WithoutGather>(test::FaultyOptions{}); };
  for (const int tp : {2, 3}) {
    VerifySettings settings = settings_at(tp);
    EXPECT_EQ(first_of(verify_model(make, settings)), "");
    settings.loss = [](const DTensor& logits, const Tensor& labels, int64_t valid_tokens) {
      const DTensor loss = cross_entropy(logits, labels, {.valid_tokens = valid_tokens});
      return loss.with(loss.local() - 0.1 * logits.local().mean());
    };
    EXPECT_EQ(first_of(verify_model(make, settings)), "the loss: output");
  }
}

VerifyReport verified_llama(const Plan& plan, int tp) {
  const Json config = Json::parse(R"({"model_type": "llama", "vocab_size": 19, "hidden_size": 12,
    "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 3,
    "num_key_value_heads": 3})",
                                  "test");
  VerifySettings settings = settings_at(tp);
  settings.plan = plan;
  return verify_model([&] { return make_model(config); }, settings);
}

const Plan kAttention = {{"model.embed_tokens", Rowwise{}},
                         {"model.layers.*.self_attn.{q,k,v}_proj", Colwise{}},
                         {"model.layers.*.self_attn.o_proj", Rowwise{}}};

Plan with(Plan plan, const Plan& more) {
  plan.insert(plan.end(), more.begin(), more.end());
  return plan;
}

void expect_shape_error(const std::function<void()>& act, const std::vector<std::string>& names) {
  const Error error = thrown_by(act);
  EXPECT_EQ(error.code(), Code::kShape);
  for (const std::string& name : names) {
    EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
  }
}

TEST(Verify, MissingPlanEntry_IsAnErrorThatNamesTheModules) {
  for (const int tp : {2, 3}) {
    expect_shape_error(
        [&] {
          verified_llama({{"model.layers.*.self_attn.{q,k,v}_proj", Colwise{}}}, tp);
        },
        {"model.layers.0.self_attn", "o_proj"});
    expect_shape_error(
        [&] {
          verified_llama(with(kAttention, {{"*.*.*.mlp.{gate,up}_proj", Colwise{}}}), tp);
        },
        {"model.layers.0.mlp.down_proj", "made by model.layers.0.mlp"});
    expect_shape_error(
        [&] {
          verified_llama(with(kAttention, {{"*.*.*.mlp.gate_proj", Colwise{}}}), tp);
        },
        {"mlp.gate_proj", "mlp.up_proj"});
  }
}

TEST(Verify, MissingPlanEntryWithAConversion_IsReportedWithItsBytes) {
  const int64_t input_bytes = 2 * 7 * 10 * 8;  // [2, 7, 10] in fp64
  for (const int tp : {2, 3}) {
    const VerifyReport sharded =
        verified_llama(with(kAttention, {{"*.*.*.mlp.down_proj", Rowwise{}}}), tp);
    EXPECT_EQ(first_of(sharded), "");
    ASSERT_EQ(sharded.notes.size(), 2U);
    EXPECT_EQ(
        sharded.notes[0],
        str("model.layers.0.mlp.down_proj shards its input, which model.layers.0.mlp replicates: ",
            input_bytes,
            " bytes per step to gather its gradient; does the plan lack a colwise key for "
            "model.layers.0.mlp?"));
    EXPECT_NE(sharded.notes[1].find("mlp.gate_proj.weight"), std::string::npos) << sharded.notes[1];
    const VerifyReport gathered =
        verified_llama(with(kAttention, {{"*.*.*.mlp.{gate,up}_proj", Colwise{}},
                                         {"*.*.*.mlp.down_proj", Colwise{.output = Replicate{}}},
                                         {"lm_head", Colwise{.output = Shard{-1}}}}),
                       tp);
    EXPECT_EQ(first_of(gathered), "");
    ASSERT_EQ(gathered.notes.size(), 1U);
    EXPECT_EQ(
        gathered.notes[0],
        str("model.layers.0.mlp.down_proj gathers its input, which model.layers.0.mlp shards by "
            "feature: ",
            2 * input_bytes, " bytes per step; the style rowwise takes it sharded"));
  }
}

TEST(Verify, SelectedLayers_RunByThemselves) {
  VerifySettings settings = settings_at(2);
  settings.layer = "second.{up,down}";
  const VerifyReport report = verified(Fault::kBiasOnEveryRank, settings);
  std::vector<std::string> names;
  for (const VerifiedPart& part : report.parts) names.push_back(part.name);
  EXPECT_EQ(names, (std::vector<std::string>{"the weights", "second.up", "second.down", "the loss",
                                             "a training step", "second.up with dropout",
                                             "second.down with dropout", "the loss with dropout",
                                             "a training step with dropout"}));
  EXPECT_EQ(first_of(report), "second.down: output");
  settings.layer = "secnd.up";
  const Error error = thrown_by([&] { verified(Fault::kNone, settings); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_NE(std::string(error.what()).find("second.up"), std::string::npos) << error.what();
}

TEST(Verify, BytesOfALayer_AreThoseOfItsConversions) {
  const VerifyReport report = verified(Fault::kNone, settings_at(2));
  const int64_t x = 2 * 7 * 6 * 8;  // [2, 7, 6] in fp64
  EXPECT_EQ(part_of(report, "second.norm").bytes, 0);
  EXPECT_EQ(part_of(report, "second.up").bytes, x);    // the gradient of its input is summed
  EXPECT_EQ(part_of(report, "second.down").bytes, x);  // its output is summed
  EXPECT_EQ(part_of(report, "gather").bytes, 2 * 7 * 13 * 8);
}

// A fault as large as the values is found in every type. An extra bias of 0.1 on values of 2 is
// within the bound of bf16, so only the other types find it.
TEST(Verify, EveryType_FindsFaultsWithoutFalseAlarms) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int tp : {2, 3}) {
      VerifySettings settings = settings_at(tp);
      settings.dtype = type;
      const auto where = str(toString(type), " tp ", tp);
      EXPECT_EQ(first_of(verified(Fault::kNone, settings)), "") << where;
      EXPECT_EQ(first_of(verified(Fault::kNoAllReduce, settings)),
                "second.up: gradient of the input")
          << where;
      EXPECT_EQ(first_of(verified(Fault::kQkvSlice, settings)), "second.attn: output") << where;
      EXPECT_EQ(first_of(verified(Fault::kGatherBackward, settings)),
                "gather: gradient of the input")
          << where;
      EXPECT_EQ(first_of(verified(Fault::kLocalDropout, settings)),
                "second.drop with dropout: output")
          << where;
      if (type == at::kBFloat16) continue;
      EXPECT_EQ(first_of(verified(Fault::kBiasOnEveryRank, settings)), "second.down: output")
          << where;
    }
  }
}

std::string first_of_model(const char* config, at::ScalarType type) {
  VerifySettings settings = settings_at(2);
  settings.dtype = type;
  const Json json = Json::parse(config, "test");
  return first_of(verify_model([&] { return make_model(json); }, settings));
}

// With a window of 1 a query sees one key: its probability is 1, and the gradients of queries and
// keys are 0 whatever the weights. Backward of softmax subtracts numbers as large as the gradient
// of the probabilities, which rounding makes unequal.
TEST(Verify, GradientsThatCancelInsideAnOperation_AreNoFaults) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    EXPECT_EQ(first_of_model(R"({"model_type": "mistral", "vocab_size": 19, "hidden_size": 24,
      "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 3,
      "num_key_value_heads": 3, "sliding_window": 1, "initializer_range": 0.5})",
                             type),
              "")
        << toString(type);
  }
}

// Weights of size 1 multiply rounding by about 10 in each of 16 matrices in series.
TEST(Verify, ModelThatAmplifiesRoundingBeyondItsValues_HasNoFaults) {
  EXPECT_EQ(first_of_model(R"({"model_type": "gpt2", "vocab_size": 19, "n_embd": 40,
    "n_layer": 4, "n_head": 5, "n_positions": 16, "initializer_range": 0.5})",
                           at::kHalf),
            "");
}

}  // namespace
}  // namespace cleave::verify_test
