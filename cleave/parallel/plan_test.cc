#include "cleave/parallel/plan.h"

#include <fstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/mesh/dry_axis.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/linear.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"
#include "cleave/parallel/gradients.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::plan_test {
namespace {

using test::on_ranks;
using test::thrown_by;

Plan parsed(const std::string& text) {
  return plan_from_json(Json::parse(text, "plan.json"));
}

TEST(PlanFromJson, Entries_KeepTheirOrderStylesAndLayouts) {
  const Plan plan = parsed(R"json({"model.layers.*.mlp.up_proj":
          {"style": "colwise", "input": "replicate", "output": "shard(-1)"},
        "b": {"style": "rowwise", "output": "shard(1)", "input": null},
        "a": {"style": "rowwise"}})json");
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_EQ(plan[0].first, "model.layers.*.mlp.up_proj");
  EXPECT_EQ(plan[0].second.kind, Style::Kind::kColwise);
  EXPECT_TRUE(plan[0].second.input->is_replicate());
  EXPECT_TRUE(plan[0].second.desired_output->is_shard(-1));
  EXPECT_EQ(plan[1].first, "b");
  EXPECT_EQ(plan[1].second.kind, Style::Kind::kRowwise);
  EXPECT_FALSE(plan[1].second.input);
  EXPECT_TRUE(plan[1].second.desired_output->is_shard(1));
  EXPECT_FALSE(plan[2].second.desired_output);
}

TEST(PlanFromJson, PreparedModules_KeepStatedAndDesiredLayouts) {
  const Plan plan = parsed(R"json({"norm": {"style": "sequence"},
      "attention": {"style": "prepare", "input": "shard(1)", "desired_input": "replicate",
                    "output": "replicate", "desired_output": "shard(1)"}})json");
  EXPECT_TRUE(plan[0].second.desired_input->is_shard(1));
  EXPECT_TRUE(plan[1].second.input->is_shard(1));
  EXPECT_TRUE(plan[1].second.desired_input->is_replicate());
  EXPECT_TRUE(plan[1].second.output->is_replicate());
  EXPECT_TRUE(plan[1].second.desired_output->is_shard(1));
}

TEST(PlanFromJson, WrongEntries_SayWhereAndWhatWouldBeRight) {
  const auto refused = [](const std::string& text, const std::string& part) {
    const Error error = thrown_by([&] { (void)parsed(text); });
    EXPECT_EQ(error.code(), Code::kFormat) << text;
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("plan.json"), std::string::npos) << error.what();
  };
  refused(R"({"a": {"style": "columnwise"}})",
          "expected \"colwise\", \"rowwise\", \"sequence\" or \"prepare\"");
  refused(R"({"a": {"style": "colwise", "desired_input": "replicate"}})", "only the style");
  refused(R"json({"a": {"style": "sequence", "input": "shard(1)"}})json",
          "takes no input and output");
  refused(R"({"a": {"output": "replicate"}})", "style");
  refused(R"({"a": {"style": "colwise", "outputs": "replicate"}})", "unknown key");
  for (const char* layout : {"shard", "shard()", "shard(x)", "shard(1", "shard(1.5)", "shard(1) ",
                             "partial", "Replicate", ""}) {
    refused(str(R"({"a": {"style": "colwise", "output": ")", layout, R"("}})"),
            "expected \"replicate\" or \"shard(DIM)\"");
  }
  refused(R"({"a": {"style": "colwise", "output": 1}})", "output");
  refused(R"({"a": "colwise"})", "a");
  refused(R"([{"style": "colwise"}])", "");
  refused(R"({"a": {"style": "colwise"}, "a": {"style": "rowwise"}})", "a");
}

Mlp make_mlp() {
  return Mlp({.hidden = 4, .intermediate = 6});
}

/// The message with which parallelize_module refuses a plan for a gated Mlp on two ranks.
std::string refusal(const Plan& plan) {
  std::string text;
  on_ranks(2, [&](const Axis& axis) {
    Mlp mlp = make_mlp();
    const Error error = thrown_by([&] { parallelize_module(mlp, axis, plan); });
    EXPECT_EQ(error.code(), Code::kShape);
    if (axis.rank() == 0) text = error.what();
  });
  return text;
}

TEST(ReadPlan, FileThatIsNoJson_IsRefusedWithWhatAPlanIs) {
  const test::TempFolder folder;
  const std::string path = folder / "plan.json";
  std::ofstream(path) << "colwise";
  const Error error = thrown_by([&] { (void)read_plan(path); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_EQ(error.what(), path +
                              ": found 'c', expected a value (byte 0); a plan is a JSON object of "
                              "module names and styles");
  std::ofstream(path) << R"({"up": {"style": "colwise"}})";
  EXPECT_EQ(read_plan(path).at(0).first, "up");
}

TEST(ParallelizeModule, KeyThatMatchesNothing_NamesTheNearest) {
  const std::string what = refusal({{"up_prj", Colwise{}}});
  EXPECT_TRUE(what.starts_with("plan key 'up_prj' matches no module; did you mean 'up_proj'"))
      << what;
}

TEST(ParallelizeModule, TwoKeysOnOneModule_AreBothNamed) {
  EXPECT_EQ(refusal({{"{gate,up}_proj", Colwise{}}, {"up*", Colwise{}}}),
            "plan keys '{gate,up}_proj' and 'up*' both match 'up_proj'; each module may have one "
            "style");
  // Also by its alias.
  EXPECT_EQ(refusal({{"up_proj", Colwise{}}, {"w3", Colwise{}}}),
            "plan keys 'up_proj' and 'w3' both match 'up_proj'; each module may have one style");
}

TEST(ParallelizeModule, InputLayoutThatTheStyleRejects_IsRefused) {
  EXPECT_NE(refusal({{"up_proj", Colwise{.input = Shard{-1}}}}).find("does not go with colwise"),
            std::string::npos);
  EXPECT_NE(refusal({{"down_proj", Rowwise{.input = Shard{1}}}}).find("does not go with rowwise"),
            std::string::npos);
  on_ranks(2, [](const Axis& axis) {
    Mlp mlp = make_mlp();
    EXPECT_NO_THROW(parallelize_module(mlp, axis,
                                       {{"{gate,up}_proj", Colwise{.input = Shard{1}}},
                                        {"down_proj", Rowwise{.input = Shard{-1}}}}));
  });
}

TEST(ParallelizeModule, StyleOnALayerWithoutOne_IsRefused) {
  on_ranks(2, [](const Axis& axis) {
    RmsNorm norm(4, 1e-5);
    const Error error = thrown_by([&] { parallelize_module(norm, axis, {{"", Rowwise{}}}); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("it applies to Linear and Embedding layers"),
              std::string::npos);
  });
}

TEST(ParallelizeModule, StyleOnALayerThatIsNeverCalled_IsRefused) {
  on_ranks(2, [](const Axis& axis) {
    Mlp mlp = make_mlp();
    LayerGroup group;
    LayerGroup root;
    group.add("mlp", mlp);
    root.add("group", group);
    const Plan plan{{"group", PrepareModuleOutput{.output = {}, .desired = Shard{1}}}};
    const Error error = thrown_by([&] { parallelize_module(root, axis, plan); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("group only groups layers"), std::string::npos)
        << error.what();
  });
}

/// A head with a bias and the matrix of the embedding, but no entry of the plan.
struct TiedHead : Layer {
  TiedHead() {
    head.tie_weight(embed.weight());
    add("embed", embed);
    add("head", head);
  }
  DTensor forward(const DTensor& x, const Context& context) override {
    return head(embed(x, context), context);
  }
  Embedding embed{{.num_embeddings = 8, .embedding_dim = 6, .init = Init::normal(1)}};
  Linear head{{.in_features = 6, .out_features = 8, .bias_init = Init::normal(1)}};
};

// Oracle: libtorch on the whole matrix and bias.
TEST(ParallelizeModule, HeadTiedToAShardedEmbedding_AddsItsBiasOnceOrSaysWhatItNeeds) {
  TiedHead whole;
  materialize(whole, {.seed = 3, .dtype = at::kDouble});
  const Tensor ids = test::ids({2, 5}, 8, 1), matrix = whole.embed.weight()->leaf();
  const Tensor want =
      at::linear(at::embedding(matrix, ids), matrix, whole.parameters().back()->leaf());
  on_ranks(2, [&](const Axis& axis) {
    TiedHead by_width;
    parallelize_module(by_width, axis, {{"embed", Colwise{.output = Replicate{}}}});
    materialize(by_width, {.seed = 3, .dtype = at::kDouble});
    const DTensor got = by_width(DTensor(ids, axis, Replicate{}), Context());
    EXPECT_LE((got.local() - want).abs().max().item<double>(), 1e-14);

    TiedHead by_ids;
    parallelize_module(by_ids, axis, {{"embed", Rowwise{.output = Replicate{}}}});
    materialize(by_ids, {.seed = 3, .dtype = at::kDouble});
    const Error error =
        thrown_by([&] { (void)by_ids(DTensor(ids, axis, Replicate{}), Context()); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("the style colwise"), std::string::npos);
  });
}

TEST(ParallelizeModule, AfterMemoryWasGiven_EqualsBefore) {
  const Plan plan = {{"{gate,up}_proj", Colwise{}}, {"down_proj", Rowwise{}}};
  on_ranks(3, [&](const Axis& axis) {
    Mlp before = make_mlp();
    parallelize_module(before, axis, plan);
    materialize(before, {.seed = 4});
    Mlp after = make_mlp();
    materialize(after, {.seed = 4});
    parallelize_module(after, axis, plan);
    const Parameters want = before.parameters();
    const Parameters got = after.parameters();
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i]->leaf(), want[i]->leaf())) << want[i]->name();
    }
  });
}

/// Name, sharded dim and ranges of every parameter, "whole" for those on every rank.
std::map<std::string, std::string> shards_of(Layer& model) {
  std::map<std::string, std::string> out;
  for (const auto& p : model.parameters()) {
    std::string shard = p->is_split() ? str("dim ", p->split_dim()) : "whole";
    for (const Range& r : p->ranges()) shard += str(" [", r.begin, ", ", r.end, ")");
    out[p->name()] = shard;
  }
  return out;
}

// PyTorch's tutorial table for Llama 2, with the misspelt key corrected.
const Plan kTutorial = {{"tok_embeddings", Rowwise{.input = Replicate{}}},
                        {"layers.*.attention.wq", Colwise{}},
                        {"layers.*.attention.wk", Colwise{}},
                        {"layers.*.attention.wv", Colwise{}},
                        {"layers.*.attention.wo", Rowwise{}},
                        {"layers.*.feed_forward.w1", Colwise{}},
                        {"layers.*.feed_forward.w2", Rowwise{}},
                        {"layers.*.feed_forward.w3", Colwise{}},
                        {"output", Colwise{.output = Shard{-1}}}};

TEST(ParallelizeModule, TutorialsNamesOnLlama_GiveTheShippedPlansShards) {
  for (const int tp : {2, 3, 4}) {
    on_ranks(tp, [](const Axis& axis) {
      const auto shipped = make_model(preset_config("llama-tiny", 257));
      const auto tutorial = make_model(preset_config("llama-tiny", 257));
      parallelize_module(*shipped, axis, shipped->plan());
      parallelize_module(*tutorial, axis, kTutorial);
      const auto want = shards_of(*shipped);
      EXPECT_EQ(shards_of(*tutorial), want);
      // As the plan says: q by heads (8 of 32), the rest balanced.
      const int64_t first = (8 + axis.size() - 1) / axis.size() * 32;
      if (axis.rank() == 0) {
        EXPECT_EQ(want.at("model.layers.3.self_attn.q_proj.weight"), str("dim 0 [0, ", first, ")"));
        EXPECT_EQ(want.at("model.layers.3.self_attn.o_proj.weight"), str("dim 1 [0, ", first, ")"));
      }
      EXPECT_EQ(want.at("model.norm.weight"), "whole [0, 256)");
    });
  }
}

TEST(ParallelizeModule, TutorialsMisspeltKey_IsAnErrorWithTheRightOne) {
  on_ranks(2, [](const Axis& axis) {
    const auto model = make_model(preset_config("llama-tiny", 257));
    Plan plan = kTutorial;
    plan[5].first = "layers.*.feed_foward.w1";
    const Error error = thrown_by([&] { parallelize_module(*model, axis, plan); });
    EXPECT_EQ(error.code(), Code::kShape);
    const std::string what = error.what();
    EXPECT_TRUE(what.starts_with("plan key 'layers.*.feed_foward.w1' matches no module")) << what;
    EXPECT_NE(what.find("feed_forward.w1'"), std::string::npos) << what;
  });
}

// The tutorial's table with sequence and loss parallelism, entry by entry.
const Plan kTutorialSequence = {
    {"tok_embeddings", Rowwise{.input = Replicate{}, .output = Shard{1}}},
    {"layers.*.attention_norm", SequenceParallel{}},
    {"layers.*.attention", PrepareModuleInput{.input = Shard{1}, .desired = Replicate{}}},
    {"layers.*.attention.wq", Colwise{}},
    {"layers.*.attention.wk", Colwise{}},
    {"layers.*.attention.wv", Colwise{}},
    {"layers.*.attention.wo", Rowwise{.output = Shard{1}}},
    {"layers.*.ffn_norm", SequenceParallel{}},
    {"layers.*.feed_forward", PrepareModuleInput{.input = Shard{1}, .desired = Replicate{}}},
    {"layers.*.feed_forward.w1", Colwise{}},
    {"layers.*.feed_forward.w2", Rowwise{.output = Shard{1}}},
    {"layers.*.feed_forward.w3", Colwise{}},
    {"norm", SequenceParallel{}},
    {"output", Colwise{.input = Shard{1}}}};

struct LossAndGradients {
  double loss = 0;
  std::map<std::string, Tensor> whole;  // by parameter
};

/// One pass of a small Llama in fp64 on one rank of an axis: sequences of 7 tokens, which neither 2
/// nor 3 divides.
LossAndGradients pass_of_llama(const Axis& axis, const Plan& plan) {
  const auto model = make_model(preset_config("llama-tiny", 50));
  parallelize_module(*model, axis, plan);
  materialize(*model, {.dtype = at::kDouble});
  const Tensor ids = test::ids({2, 7}, 50, 3);
  const DTensor logits = (*model)(DTensor(ids, axis, Replicate{}), Context());
  EXPECT_TRUE(!logits.is_split() || logits.placement().is_shard(2));
  const DTensor loss = cross_entropy(logits, next_token_labels(ids));
  loss.local().backward();
  finish_gradients(model->parameters(), axis);
  LossAndGradients out{.loss = loss.local().item<double>(), .whole = {}};
  for (const auto& p : model->parameters()) out.whole[p->name()] = p->leaf().grad();
  return out;
}

TEST(ParallelizeModule, TutorialsSequenceParallelPlan_GivesTheLossAndGradientsOfOneRank) {
  const LossAndGradients want = pass_of_llama(Axis(), {});
  for (const int tp : {2, 3, 8}) {  // with 8 ranks one has no token
    on_ranks(tp, [&](const Axis& axis) {
      const LossAndGradients got = pass_of_llama(axis, kTutorialSequence);
      EXPECT_NEAR(got.loss, want.loss, 1e-12);
      const auto model = make_model(preset_config("llama-tiny", 50));
      parallelize_module(*model, axis, kTutorialSequence);
      for (const auto& p : model->parameters()) {
        EXPECT_LE(test::largest_difference(got.whole.at(p->name()),
                                           test::slice_of(*p, want.whole.at(p->name()))),
                  1e-12)
            << p->name() << " tp=" << axis.size();
      }
    });
  }
}

TEST(ParallelizeModule, StatedLayoutThatIsNotThere_IsRefusedAtTheFirstCall) {
  on_ranks(2, [](const Axis& axis) {
    Mlp mlp = make_mlp();
    parallelize_module(mlp, axis, {{"", PrepareModuleInput{.input = Shard{1}}}});
    materialize(mlp);
    const DTensor x(at::ones({1, 4, 4}), axis, Replicate{});
    const Error error = thrown_by([&] { (void)mlp(x, Context()); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("states input=Shard(1); it is Replicate"),
              std::string::npos)
        << error.what();
  });
}

TEST(ParallelizeModule, BlockByBlockAndTwice_GivesTheShardsOfTheWholePlan) {
  on_ranks(2, [](const Axis& axis) {
    const auto whole = make_model(preset_config("llama-tiny", 257));
    const auto blocks = make_model(preset_config("llama-tiny", 257));
    parallelize_module(*whole, axis, whole->plan());
    for (int twice = 0; twice < 2; ++twice) {
      for (Layer* layer : blocks->sequence()) {
        blocks->name_tree();
        if (layer->path().find(".layers.") == std::string::npos) continue;
        parallelize_module(*layer, axis,
                           {{"attention.w{q,k,v}", Colwise{}},
                            {"attention.wo", Rowwise{}},
                            {"feed_forward.w{1,3}", Colwise{}},
                            {"feed_forward.w2", Rowwise{}}});
      }
      parallelize_module(*blocks, axis, {{"tok_embeddings", Rowwise{}}, {"output", Colwise{}}});
    }
    EXPECT_EQ(shards_of(*blocks), shards_of(*whole));
  });
}

TEST(DescribeSplit, DryAxis_ShowsTheLayoutOfEveryRankWithoutOne) {
  Mlp mlp = make_mlp();
  parallelize_module(mlp, dry_axis("tp", 1, 4), {{"up_proj", Colwise{}}});
  EXPECT_EQ(describe_split(mlp),
            "gate_proj.weight  [6, 4]  Replicate  [6, 4]\n"
            "up_proj.weight  [6, 4]  Shard(0)  [2, 4]\n"
            "down_proj.weight  [4, 6]  Replicate  [4, 6]\n");
}

}  // namespace
}  // namespace cleave::plan_test
