#include "cleave/model/model.h"

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/nn/attention.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/experts.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"
#include "cleave/parallel/gradients.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::model_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A block of Cleave's own layers.
class Block : public Layer {
 public:
  explicit Block(int64_t width)
      : attention_({.hidden = width, .num_heads = 4, .num_kv_heads = 2, .head_dim = 3}),
        norm_(width, 1e-5),
        mlp_({.hidden = width, .intermediate = 10}) {
    add("attention", attention_);
    add("norm", norm_);
    add("mlp", mlp_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor h = x + attention_(norm_(x, context), context);
    return h + mlp_(h, context);
  }

 private:
  Attention attention_;
  RmsNorm norm_;
  Mlp mlp_;
};

/// A model that defines nothing but its layers.
class Plain : public Model {
 public:
  explicit Plain(const Json& config)
      : Model(config),
        embed_({.num_embeddings = facts().vocab_size, .embedding_dim = facts().hidden}),
        first_(facts().hidden),
        second_(facts().hidden),
        head_({.in_features = facts().hidden, .out_features = facts().vocab_size, .bias = false}) {
    body_.add("first", first_);
    body_.add("second", second_);
    add("embed", embed_);
    add("body", body_);
    add("head", head_);
    name_tree();
  }

 private:
  Embedding embed_;
  LayerGroup body_;
  Block first_, second_;
  Linear head_;
};

Json plain_config() {
  return Json::parse(R"({"vocab_size": 11, "hidden_size": 8, "eos_token_id": 3})", "config.json");
}

// As in prajjwal1/bert-tiny, whose family transformers takes from the folder's name.
TEST(Model, ConfigWithoutModelType_IsRefusedWithTheFamilies) {
  const Error error = test::thrown_by(
      [] { (void)make_model(Json::parse(R"({"hidden_size": 128})", "config.json")); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), testing::HasSubstr("no model_type, as some older files; add the "
                                               "family, one of llama, gpt2, bert"));
}

TEST(Model, LayersAlone_GiveFactsAndOrder) {
  Plain model(plain_config());
  EXPECT_EQ(model.facts().vocab_size, 11);
  EXPECT_EQ(model.facts().hidden, 8);
  EXPECT_EQ(model.facts().max_positions, kMostPositions);
  EXPECT_THAT(model.facts().eos_ids, ElementsAre(3));
  std::vector<std::string> paths;
  for (const Layer* layer : model.sequence()) paths.push_back(layer->path());
  EXPECT_THAT(paths, ElementsAre("embed", "body.first", "body.second", "head"));
}

TEST(Model, LayersAlone_ShardEveryMatrix) {
  Plain model(plain_config());
  test::on_ranks(1, [&](const Axis& tp) { parallelize_module(model, tp, model.plan()); });
  for (const auto& p : model.parameters()) {
    EXPECT_EQ(p->placement().is_shard(), p->shape().size() == 2) << p->name();
  }
}

// Oracle: the unsplit model, in fp64.
TEST(Model, PlanOfTheLayers_GivesTheUnsplitLogitsAndGradients) {
  const Tensor ids = test::ids({2, 6}, 11, 1);
  const auto run = [&](const Axis& tp, bool sequence_parallel) {
    Plain model(plain_config());
    if (tp.size() > 1) parallelize_module(model, tp, model.plan(sequence_parallel));
    materialize(model, {.seed = 5, .dtype = at::kDouble});
    const DTensor logits = model(DTensor(ids, tp, Replicate{}), Context());
    EXPECT_EQ(logits.placement().is_shard(2), tp.size() > 1);
    logits.full_tensor().square().sum().backward();
    finish_gradients(model.parameters(), tp);
    const GradientNorm norm = gradient_norm(model.parameters(), tp);
    return std::pair{logits.full_tensor().detach(), norm.value};
  };
  const auto [want, want_norm] = run(Axis(), false);
  for (const bool sequence_parallel : {false, true}) {
    for (const int ranks : {2, 3}) {
      test::on_ranks(ranks, [&, want = want, want_norm = want_norm](const Axis& tp) {
        const auto [got, norm] = run(tp, sequence_parallel);
        EXPECT_LE(test::largest_difference(got, want), 1e-12) << ranks;
        EXPECT_NEAR(norm, want_norm, 1e-12 * want_norm) << ranks;
      });
    }
  }
}

/// A block whose MLP is a mixture of experts, between embedding and head.
class WithExperts : public Model {
 public:
  explicit WithExperts(const Json& config)
      : Model(config),
        embed_({.num_embeddings = 11, .embedding_dim = 8, .init = Init::normal(1)}),
        norm_(8, 1e-5),
        experts_({.hidden = 8,
                  .intermediate = 10,
                  .num_experts = 4,
                  .top_k = 2,
                  .init = Init::normal(0.5)}),
        head_({.in_features = 8, .out_features = 11, .bias = false, .init = Init::normal(0.5)}) {
    add("embed", embed_);
    add("norm", norm_);
    add("experts", experts_);
    add("head", head_);
    name_tree();
  }

 private:
  Embedding embed_;
  RmsNorm norm_;
  Experts experts_;
  Linear head_;
};

// Oracle: the unsplit model, in fp64.
TEST(Model, PlanOfLayersWithExperts_GivesTheUnsplitLogitsAndGradients) {
  const Tensor ids = test::ids({2, 6}, 11, 1);
  const auto run = [&](const Axis& tp, bool sequence_parallel) {
    WithExperts model(plain_config());
    if (tp.size() > 1) parallelize_module(model, tp, model.plan(sequence_parallel));
    materialize(model, {.seed = 5, .dtype = at::kDouble});
    const DTensor logits = model(DTensor(ids, tp, Replicate{}), Context());
    logits.full_tensor().square().sum().backward();
    finish_gradients(model.parameters(), tp);
    return std::pair{logits.full_tensor().detach(), gradient_norm(model.parameters(), tp).value};
  };
  const auto [want, want_norm] = run(Axis(), false);
  for (const bool sequence_parallel : {false, true}) {
    test::on_ranks(3, [&, want = want, want_norm = want_norm](const Axis& tp) {
      const auto [got, norm] = run(tp, sequence_parallel);
      EXPECT_LE(test::largest_difference(got, want), 1e-12 * want.abs().max().item<double>());
      EXPECT_NEAR(norm, want_norm, 1e-12 * want_norm);
    });
  }
}

// Oracle: 6 for each weight of a product, and for each head 6 K T (causal) or 12 K T.
TEST(Model, FlopsOfTheLayers_AreTheClosedForm) {
  Plain model(plain_config());
  const double attention = 8 * (12 + 6 + 6) + 12 * 8;  // q, k and v, output
  const double block = attention + 3 * 8 * 10 + 8;     // MLP, norm
  EXPECT_EQ(model.train_flops_per_token(20), 6 * (2 * block + 8 * 11) + 2 * 6 * 12 * 20);
}

TEST(Model, FlopsOfAFamily_DoNotCountLookups) {
  const auto flops = [](const char* preset, int64_t seq_len) {
    return make_model(preset_config(preset, 100))->train_flops_per_token(seq_len);
  };
  // llama-tiny: width 256, 4 of 8 heads for keys, MLP of 688, 6 layers, a tied head of 100.
  const double llama = 6 * (256 * (256 + 128 + 128 + 256) + 3 * 256 * 688 + 2 * 256) + 256 + 25600;
  EXPECT_EQ(flops("llama-tiny", 64), 6 * llama + 6 * 6 * 256 * 64);
  // gpt2-tiny: the position table is a lookup; the head is tied.
  const auto gpt2 = make_model(preset_config("gpt2-tiny", 100));
  double weights = 0;
  for (const auto& p : gpt2->parameters()) {
    if (p->name() != "transformer.wpe.weight") weights += static_cast<double>(p->numel());
  }
  const ModelFacts& f = gpt2->facts();
  EXPECT_EQ(gpt2->train_flops_per_token(64),
            6 * weights + static_cast<double>(6 * f.num_layers * f.hidden * 64));
}

TEST(PresetConfig, VocabularyOfZero_IsThatOfThePublishedModel) {
  EXPECT_EQ(preset_config("llama3-8b", 0).at("vocab_size").as_int(0), 128256);
  EXPECT_EQ(preset_config("gpt2", 0).at("vocab_size").as_int(0), 50257);
  EXPECT_EQ(preset_config("gpt2", 100).at("vocab_size").as_int(0), 100);
}

// Oracle: the numbers of parameters that the models' pages on the Hugging Face Hub state; of BERT
// and its relatives, those that transformers counts.
TEST(PresetConfig, NameOfAPublishedModel_HasItsNumberOfParameters) {
  for (const auto& [name, published] : std::vector<std::pair<std::string, int64_t>>{
           {"llama2-7b", 6738415616},       {"llama2-13b", 13015864320},
           {"llama2-70b", 68976648192},     {"llama3-8b", 8030261248},
           {"llama3-70b", 70553706496},     {"llama3.1-8b", 8030261248},
           {"llama3.1-70b", 70553706496},   {"llama3.1-405b", 405853388800},
           {"llama3.2-1b", 1235814400},     {"llama3.2-3b", 3212749824},
           {"qwen2.5-0.5b", 494032768},     {"qwen2.5-1.5b", 1543714304},
           {"qwen2.5-3b", 3085938688},      {"qwen2.5-7b", 7615616512},
           {"qwen2.5-14b", 14770033664},    {"qwen2.5-32b", 32763876352},
           {"qwen2.5-72b", 72706203648},    {"qwen3-0.6b", 596049920},
           {"qwen3-1.7b", 1720574976},      {"qwen3-4b", 4022468096},
           {"qwen3-8b", 8190735360},        {"qwen3-14b", 14768307200},
           {"qwen3-32b", 32762123264},      {"bert-base", 109514298},
           {"bert-large", 335174458},       {"roberta-base", 124697433},
           {"roberta-large", 355412057},    {"distilbert-base", 66985530},
           {"xlm-roberta-base", 278295186}, {"xlm-roberta-large", 560142482}}) {
    int64_t count = 0;
    for (const auto& p : make_model(preset_config(name, 0))->parameters()) count += p->numel();
    EXPECT_EQ(count, published) << name;
  }
}

// The row `a preset` of docs/training.md; "`a-1b`, `-2b`" stands for a-1b and a-2b.
TEST(PresetConfig, Names_AreThoseOfTheDocumentation) {
  std::ifstream page(test::source_file("docs/training.md"));
  std::string row;
  while (std::getline(page, row) && !row.starts_with("| a preset |")) {
  }
  std::set<std::string> named;
  std::string series;
  std::istringstream parts(row);
  std::string between, name;
  while (std::getline(parts, between, '`') && std::getline(parts, name, '`')) {
    if (name.starts_with('-')) {
      name = series + name;
    } else {
      series = name.substr(0, name.find('-'));
    }
    named.insert(name);
  }
  const std::vector<std::string> all = preset_names();
  EXPECT_EQ(named, std::set<std::string>(all.begin(), all.end()));
}

TEST(PresetConfig, UnknownName_GetsASimilarOneOrAll) {
  const auto said = [](const char* name) {
    return std::string(test::thrown_by([&] { (void)preset_config(name, 100); }).what());
  };
  EXPECT_EQ(said("llama-tinny"),
            "model 'llama-tinny' is neither a folder nor a preset; did you mean 'llama-tiny'");
  const std::string all = said("zz");
  EXPECT_THAT(all, HasSubstr("model 'zz' is neither a folder nor a preset; the presets are "));
  for (const std::string& preset : preset_names()) EXPECT_THAT(all, HasSubstr(preset));
}

}  // namespace
}  // namespace cleave::model_test
