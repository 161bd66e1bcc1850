#include "cleave/pipeline/stages.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>

#include "cleave/model/model.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"
#include "tests/support/thrown.h"

namespace cleave::stages_test {
namespace {

using test::thrown_by;
using testing::ElementsAre;
using testing::HasSubstr;

/// A Llama with this many blocks, without memory.
std::unique_ptr<Model> llama(int64_t num_layers, int64_t vocab_size = 128, bool tied = false) {
  return make_model(Json::parse(
      str(R"({"model_type": "llama", "vocab_size": )", vocab_size,
          R"(, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": )", num_layers,
          R"(, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
             "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000,
             "tie_word_embeddings": )",
          tied ? "true" : "false", "}"),
      "test"));
}

/// How many blocks each stage has.
std::vector<int64_t> blocks_in(const Stages& stages, const std::vector<size_t>& blocks) {
  std::vector<int64_t> counts;
  for (const Range& r : stages) {
    counts.push_back(std::count_if(blocks.begin(), blocks.end(), [&](size_t b) {
      return static_cast<int64_t>(b) >= r.begin && static_cast<int64_t>(b) < r.end;
    }));
  }
  return counts;
}

TEST(Stages, Blocks_AreTheLayersOfTheMostFrequentType) {
  const auto model = llama(3);
  EXPECT_THAT(blocks_of(model->sequence()), ElementsAre(1, 2, 3));  // between embedding and norm
  EXPECT_THAT(blocks_of(llama(1)->sequence()), ElementsAre(1));
  RmsNorm a(4, 1e-5), b(4, 1e-5);
  Mlp c({.hidden = 4, .intermediate = 4}), d({.hidden = 4, .intermediate = 4});
  EXPECT_THAT(blocks_of({&a, &b, &c, &d}), ElementsAre(2, 3));
  EXPECT_THAT(blocks_of({}), ElementsAre());
}

/// Layers of two more types that contain layers.
class OtherBlock : public Mlp {
 public:
  OtherBlock() : Mlp({.hidden = 4, .intermediate = 4}) {}
};
class Embeddings : public LayerGroup {
 public:
  Embeddings() { add("words", words_); }

 private:
  Embedding words_{{.num_embeddings = 4, .embedding_dim = 4}};
};

TEST(Stages, BlocksOfTwoTypes_AreAllBlocks) {
  Embeddings ids, other_ids;
  Mlp a({.hidden = 4, .intermediate = 4}), b({.hidden = 4, .intermediate = 4}),
      c({.hidden = 4, .intermediate = 4});
  OtherBlock d, e;
  RmsNorm between(4, 1e-5), last(4, 1e-5);
  const std::vector<Layer*> sequence{&ids, &a, &b, &c, &between, &other_ids, &d, &e, &last};
  EXPECT_THAT(blocks_of(sequence), ElementsAre(1, 2, 3, 6, 7));
  EXPECT_EQ(even_stages(sequence, blocks_of(sequence), 2), (Stages{{0, 3}, {3, 9}}));
  const std::vector<Layer*> one_of_another{&ids, &a, &b, &c, &d, &last};
  EXPECT_THAT(blocks_of(one_of_another), ElementsAre(1, 2, 3)) << "a head may contain layers too";
  const std::vector<Layer*> two_heads{&ids, &a, &b, &c, &last, &d, &e};
  EXPECT_THAT(blocks_of(two_heads), ElementsAre(1, 2, 3)) << "neither do two heads count";
  const std::vector<Layer*> alternating{&ids, &a, &d, &b, &e, &c, &last};
  EXPECT_THAT(blocks_of(alternating), ElementsAre(1, 2, 3, 4, 5));
}

// NxD's documented example: 12 layers in 5 partitions are 2, 2, 2, 3, 3.
TEST(Stages, EvenRule_GivesTheRemainderToTheLastStages) {
  const auto model = llama(12);
  const auto sequence = model->sequence();
  const auto blocks = blocks_of(sequence);
  const Stages five = even_stages(sequence, blocks, 5);
  EXPECT_THAT(blocks_in(five, blocks), ElementsAre(2, 2, 2, 3, 3));
  EXPECT_EQ(five.front(), (Range{0, 3})) << "the embedding is in the first";
  EXPECT_EQ(five.back(), (Range{10, 15})) << "norm and head are in the last";
  EXPECT_THAT(blocks_in(even_stages(sequence, blocks, 4), blocks), ElementsAre(3, 3, 3, 3));
  EXPECT_EQ(even_stages(sequence, blocks, 1), (Stages{{0, 15}}));
}

TEST(Stages, FewerBlocksThanStages_NamesSizesThatWork) {
  const auto model = llama(3);
  const Error error =
      thrown_by([&] { even_stages(model->sequence(), blocks_of(model->sequence()), 4); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_THAT(error.what(), HasSubstr("pp x virtual = 4 stages are more than the model's 3 blocks; "
                                      "choose pp x virtual from 1 to 3"));
  EXPECT_EQ(thrown_by([] { balanced_stages({1, 1}, 3); }).code(), Code::kShape);
  EXPECT_EQ(thrown_by([] { balanced_stages({1, 1}, 0); }).code(), Code::kUsage);
}

TEST(Stages, Cuts_NameTheLastLayerOfAStageInAnyOrder) {
  const auto model = llama(4);
  const auto sequence = model->sequence();  // embedding, 4 blocks, norm, head
  const Stages want{{0, 2}, {2, 4}, {4, 7}};
  EXPECT_EQ(stages_from_cuts(sequence, {"model.layers.0", "model.layers.2"}, 3), want);
  EXPECT_EQ(stages_from_cuts(sequence, {"model.layers.2", "model.layers.0"}, 3), want);
  EXPECT_EQ(stages_from_cuts(sequence, {"layers.2", "layers.0"}, 3), want) << "plans' names";
  EXPECT_EQ(stages_from_cuts(sequence, {}, 1), (Stages{{0, 7}}));
}

TEST(Stages, WrongCuts_AreRefused) {
  const auto model = llama(4);
  const auto sequence = model->sequence();
  const auto error_of = [&](const std::vector<std::string>& cuts) {
    const Error error = thrown_by([&] { stages_from_cuts(sequence, cuts, 3); });
    EXPECT_EQ(error.code(), Code::kShape);
    return std::string(error.what());
  };
  EXPECT_THAT(error_of({"model.layers.0"}),
              HasSubstr("1 pipeline cuts make 2 stages; pp x virtual = 3 stages need 2 cuts"));
  EXPECT_THAT(error_of({"model.layers.0", "model.layer.2"}), HasSubstr("'model.layers.2'"));
  EXPECT_THAT(error_of({"model.layers.0", "model.layers.0.mlp"}), HasSubstr("did you mean"))
      << "inside a block there is no cut";
  EXPECT_THAT(error_of({"model.layers.0", "model.layers.0"}), HasSubstr("given twice"));
  EXPECT_THAT(error_of({"model.layers.0", "lm_head"}), HasSubstr("leave it out"));
}

/// The cost of the most expensive stage.
double slowest_stage(const std::vector<double>& costs, const Stages& stages) {
  double slowest = 0;
  for (const Range& r : stages) {
    slowest =
        std::max(slowest, std::accumulate(costs.begin() + r.begin, costs.begin() + r.end, 0.0));
  }
  return slowest;
}

/// The smallest possible cost of the slowest stage, by trying all stages.
double best_of_all(const std::vector<double>& costs, size_t begin, int num_stages) {
  double rest = 0;
  for (size_t i = begin; i < costs.size(); ++i) rest += costs[i];
  if (num_stages == 1) return rest;
  double best = rest, first = 0;
  for (size_t end = begin + 1; end + static_cast<size_t>(num_stages) - 1 <= costs.size(); ++end) {
    first += costs[end - 1];
    best = std::min(best, std::max(first, best_of_all(costs, end, num_stages - 1)));
  }
  return best;
}

TEST(Stages, ByCost_TheSlowestStageIsTheBestPossible) {
  const std::vector<double> costs{0.5, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  for (int num_stages = 1; num_stages <= 12; ++num_stages) {
    const Stages stages = balanced_stages(costs, num_stages);
    ASSERT_EQ(stages.size(), static_cast<size_t>(num_stages));
    int64_t end = 0;
    for (const Range& r : stages) {
      EXPECT_EQ(r.begin, end);
      EXPECT_GT(r.size(), 0);
      end = r.end;
    }
    EXPECT_EQ(end, 12);
    EXPECT_EQ(slowest_stage(costs, stages), best_of_all(costs, 0, num_stages)) << num_stages;
  }
}

TEST(Stages, LayerCosts_CountMatricesAndNotLookUps) {
  // Embedding 128 x 64; block: q, o 64 x 64, k, v 32 x 64, three of 172 x 64; norm; head 128 x 64.
  const double block = 6.0 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 172 * 64);
  for (const bool tied : {false, true}) {
    const auto model = llama(2, 128, tied);
    EXPECT_THAT(layer_costs(model->sequence()), ElementsAre(64, block, block, 0, 6.0 * 128 * 64));
  }
}

// With a vocabulary of 128k the head alone is worth several blocks.
TEST(Stages, ByCostWithALargeVocabulary_IsNoSlowerThanTheEvenRule) {
  const auto model = llama(32, 128256);
  const auto sequence = model->sequence();
  const auto costs = layer_costs(sequence);
  for (const int num_stages : {2, 3, 4, 8, 16}) {
    const double even =
        slowest_stage(costs, even_stages(sequence, blocks_of(sequence), num_stages));
    const double balanced = slowest_stage(costs, balanced_stages(costs, num_stages));
    EXPECT_LT(balanced, even) << num_stages;
  }
}

}  // namespace
}  // namespace cleave::stages_test
