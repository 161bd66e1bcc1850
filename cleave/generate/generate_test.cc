#include "cleave/generate/generate.h"

#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/mesh/mesh.h"
#include "cleave/parallel/parallelize.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/reads_start.h"
#include "tests/support/thrown.h"

// Oracle: ids and scores of transformers' generate() in fp32. The ids do not change when all
// weights change by 5e-6 relative. Scores are means of at most 12 log-probabilities with errors of
// 1e-5, so the tolerance is 1e-4.
namespace cleave::generate_test {
namespace {

struct Layout {
  const char* golden;
  int tp;
  int ep = 1;  // ranks that share out the experts
};

class GenerateGolden : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    folder_ = test::golden_folder(GetParam().golden);
    golden_ = test::golden_answers(GetParam().golden);
    weights_ = test::read_tensors(folder_);
  }

  /// Runs on every rank and expects equal results. Returns that of rank 0.
  Generation run(const std::vector<Ids>& prompts, GenerateSettings settings) {
    settings.max_new_tokens = 12;
    settings.eos_ids = {golden_.at("gen.eos_token_id").item<int64_t>()};
    const auto [golden, tp_size, ep_size] = GetParam();
    std::vector<Generation> all(static_cast<size_t>(tp_size * ep_size));
    test::on_world(tp_size * ep_size, [&, tp_size = tp_size, ep_size = ep_size](World& world) {
      const Mesh mesh = Mesh::build(world, {{"ep", ep_size}, {"tp", tp_size}});
      auto model = make_model(Json::parse_file(folder_ + "/config.json"));
      parallelize_module(*model, mesh["tp"], model->plan());
      share_out_experts(*model, {.pp = {}, .dp = {}, .tp = mesh["tp"], .ep = mesh["ep"]},
                        RankTokens::kSame);
      test::fill(*model, weights_, at::kFloat);
      all[static_cast<size_t>(world.rank())] = generate(*model, mesh["tp"], prompts, settings);
    });
    for (const Generation& other : all) expect_same(other, all[0]);
    return all[0];
  }

  static void expect_same(const Generation& a, const Generation& b) {
    ASSERT_EQ(a.prompts.size(), b.prompts.size());
    for (size_t p = 0; p < a.prompts.size(); ++p) {
      ASSERT_EQ(a.prompts[p].size(), b.prompts[p].size());
      for (size_t s = 0; s < a.prompts[p].size(); ++s) {
        EXPECT_EQ(a.prompts[p][s].ids, b.prompts[p][s].ids);
        EXPECT_EQ(a.prompts[p][s].score, b.prompts[p][s].score);
      }
    }
  }

  [[nodiscard]] Ids ids_of(const Tensor& t) const {
    const Tensor row = t.to(at::kLong).contiguous();
    return {row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()};
  }

  /// The new ids in a row of a golden file, without the padding after the end id.
  [[nodiscard]] Ids new_ids(const std::string& key, int64_t row) const {
    const Tensor all = golden_.at(key)[row];
    const int64_t length = golden_.at(key.substr(0, key.rfind('.')) + ".prompt").size(1);
    Ids ids = ids_of(all.narrow(0, length, all.size(0) - length));
    const int64_t eos = golden_.at("gen.eos_token_id").item<int64_t>();
    const auto end = std::find(ids.begin(), ids.end(), eos);
    if (end != ids.end()) ids.erase(end + 1, ids.end());
    return ids;
  }

  [[nodiscard]] std::vector<Ids> single() const {
    return {ids_of(golden_.at("gen.single.prompt"))};
  }
  [[nodiscard]] std::vector<Ids> batch() const {
    std::vector<Ids> out;
    const Tensor& mask = golden_.at("gen.batch.mask");
    for (int64_t r = 0; r < mask.size(0); ++r) {
      out.push_back(ids_of(golden_.at("gen.batch.prompt")[r].masked_select(mask[r].ne(0))));
    }
    return out;
  }

  void expect_beams(const std::vector<Ids>& prompts, const std::string& key) {
    const Generation got = run(prompts, {.num_beams = 3, .num_return_sequences = 3});
    const Tensor scores = golden_.at(key + "_scores").to(at::kDouble);
    for (size_t p = 0; p < prompts.size(); ++p) {
      ASSERT_EQ(got.prompts[p].size(), 3U);
      for (size_t s = 0; s < 3; ++s) {
        const auto row = static_cast<int64_t>(3 * p + s);
        EXPECT_EQ(got.prompts[p][s].ids, new_ids(key, row)) << key << " row " << row;
        EXPECT_NEAR(got.prompts[p][s].score, scores[row].item<double>(), 1e-4);
      }
    }
  }

  std::string folder_;
  test::Tensors golden_, weights_;
};

TEST_P(GenerateGolden, Greedy_GivesTheGoldenIds) {
  EXPECT_EQ(run(single(), {}).prompts[0][0].ids, new_ids("gen.single.greedy", 0));
}

TEST_P(GenerateGolden, GreedyBatchOfUnequalPrompts_GivesTheGoldenIds) {
  const Generation got = run(batch(), {});
  for (size_t p = 0; p < got.prompts.size(); ++p) {
    EXPECT_EQ(got.prompts[p][0].ids, new_ids("gen.batch.greedy", static_cast<int64_t>(p)));
  }
}

// Oracle: one pass over prompt and continuation.
TEST_P(GenerateGolden, GreedyScore_IsTheMeanLogProbability) {
  const Sequence got = run(single(), {}).prompts[0][0];
  const auto model = make_model(Json::parse_file(folder_ + "/config.json"));
  test::fill(*model, weights_, at::kFloat);
  const Ids prompt = single()[0];
  Ids all = prompt;
  all.insert(all.end(), got.ids.begin(), got.ids.end());
  const at::NoGradGuard no_grad;
  const Tensor ids = at::tensor(all).unsqueeze(0);
  const Tensor logits = (*model)(DTensor(ids, Axis(), Replicate{}), {}).local()[0];
  const Tensor log_p = logits.to(at::kDouble).log_softmax(-1);
  double sum = 0;
  for (size_t i = 0; i < got.ids.size(); ++i) {
    sum += log_p[static_cast<int64_t>(prompt.size() + i) - 1][got.ids[i]].item<double>();
  }
  EXPECT_NEAR(got.score, sum / static_cast<double>(got.ids.size()), 1e-4);
}

TEST_P(GenerateGolden, ThreeBeams_GiveIdsAndScoresOfAllThree) {
  expect_beams(single(), "gen.single.beam3");
}

TEST_P(GenerateGolden, ThreeBeamsOfABatch_GiveIdsAndScoresOfAll) {
  expect_beams(batch(), "gen.batch.beam3");
}

TEST_P(GenerateGolden, DrawnIds_AreThoseOfOneRankAndOfThePromptAlone) {
  const GenerateSettings settings{.num_return_sequences = 2,
                                  .do_sample = true,
                                  .temperature = 1.5,
                                  .top_k = 20,
                                  .top_p = 0.9,
                                  .seed = 11};
  const Generation got = run(batch(), settings);
  GenerateSettings alone = settings;
  alone.max_new_tokens = 12;
  alone.eos_ids = {golden_.at("gen.eos_token_id").item<int64_t>()};
  auto model = make_model(Json::parse_file(folder_ + "/config.json"));
  test::fill(*model, weights_, at::kFloat);
  for (size_t p = 0; p < got.prompts.size(); ++p) {
    alone.first_prompt = static_cast<int64_t>(p);
    const Generation one = generate(*model, Axis(), {batch()[p]}, alone);
    for (size_t s = 0; s < 2; ++s) EXPECT_EQ(got.prompts[p][s].ids, one.prompts[0][s].ids);
  }
}

TEST_P(GenerateGolden, DrawnBeams_AreThoseOfOneRank) {
  const GenerateSettings settings{.num_beams = 3, .do_sample = true, .seed = 5};
  const Generation got = run(batch(), settings);
  GenerateSettings one = settings;
  one.max_new_tokens = 12;
  one.eos_ids = {golden_.at("gen.eos_token_id").item<int64_t>()};
  auto model = make_model(Json::parse_file(folder_ + "/config.json"));
  test::fill(*model, weights_, at::kFloat);
  const Generation want = generate(*model, Axis(), batch(), one);
  for (size_t p = 0; p < got.prompts.size(); ++p) {
    EXPECT_EQ(got.prompts[p][0].ids, want.prompts[p][0].ids);
  }
}

std::vector<Layout> layouts() {
  std::vector<Layout> out;
  for (const char* golden : {"llama-mha", "llama-6heads", "llama-gqa-tied", "llama-gqa-llama3rope",
                             "gpt2",      "gpt2-4layers", "gpt2-6heads",    "qwen2",
                             "qwen3",     "qwen3-moe",    "mistral",        "mixtral",
                             "smollm3",   "olmo2",        "olmo3",          "phi3",
                             "phi3-long", "gemma2",       "gemma3",         "gemma3-untied"}) {
    for (const int tp : {1, 2, 3, 4}) out.push_back({golden, tp});
  }
  for (const char* golden : {"qwen3-moe", "mixtral"}) {
    for (const auto& [tp, ep] : {std::pair(1, 2), {1, 3}, {2, 2}}) out.push_back({golden, tp, ep});
  }
  return out;
}

std::string layout_name(const ::testing::TestParamInfo<Layout>& layout) {
  std::string name = str(layout.param.golden, "_tp", layout.param.tp);
  if (layout.param.ep > 1) name += str("_ep", layout.param.ep);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Layouts, GenerateGolden, ::testing::ValuesIn(layouts()), layout_name);

/// A one-layer model of random weights that needs no data.
std::unique_ptr<Model> small_model(int64_t max_positions = 16) {
  auto model = make_model(Json::parse(
      str(R"({"model_type": "llama", "vocab_size": 13, "hidden_size": 8, "intermediate_size": 16,
              "num_hidden_layers": 1, "num_attention_heads": 2, "rms_norm_eps": 1e-5,
              "max_position_embeddings": )",
          max_positions, "}"),
      "test"));
  materialize(*model, {.seed = 3, .dtype = at::kFloat});
  return model;
}

TEST(Generate, MoreTokensThanPositions_StopAtTheLastPosition) {
  const auto model = small_model(8);
  const Generation got = generate(*model, Axis(), {{1, 2, 3}, {4}}, {.max_new_tokens = 100});
  EXPECT_EQ(got.prompts[0][0].ids.size(), 6U);  // the last new id needs no position
  EXPECT_EQ(got.prompts[1][0].ids.size(), 8U);
}

TEST(Generate, BeamsWithMoreTokensThanPositions_StopAtTheLastPosition) {
  const auto model = small_model(8);
  const Generation got =
      generate(*model, Axis(), {{1, 2, 3}, {4}}, {.max_new_tokens = 100, .num_beams = 2});
  EXPECT_EQ(got.prompts[0][0].ids.size(), 6U);
  EXPECT_EQ(got.prompts[1][0].ids.size(), 8U);
}

TEST(Generate, PromptLongerThanTheModel_NamesBothLengths) {
  const auto model = small_model(4);
  const Error error = test::thrown_by([&] { generate(*model, Axis(), {{1, 2, 3, 4, 5}}, {}); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_STREQ(error.what(), "prompt 1 has 5 ids; the model has 4 positions; shorten the prompt");
}

TEST(Generate, IdOutsideTheVocabulary_IsNamed) {
  const auto model = small_model();
  const Error error = test::thrown_by([&] { generate(*model, Axis(), {{1}, {2, 13}}, {}); });
  EXPECT_STREQ(error.what(), "prompt 2 has id 13; the model's ids are 0 to 12; leave this one out");
}

TEST(Generate, MoreSequencesThanBeams_IsRefused) {
  const auto model = small_model();
  const Error error = test::thrown_by(
      [&] { generate(*model, Axis(), {{1}}, {.num_beams = 2, .num_return_sequences = 3}); });
  EXPECT_EQ(error.code(), Code::kUsage);
}

TEST(Generate, EndOfText_EndsTheSequence) {
  const auto model = small_model();
  const Generation free_run = generate(*model, Axis(), {{1}}, {.max_new_tokens = 10});
  const int64_t third = free_run.prompts[0][0].ids[2];
  size_t num_calls = 0;
  const EndsText ends = [&](std::span<const int64_t> prompt, std::span<const int64_t> ids) {
    EXPECT_EQ(prompt.size(), 1U);
    ++num_calls;
    return ids.size() == 3 && ids.back() == third;
  };
  const Generation got = generate(*model, Axis(), {{1}}, {.max_new_tokens = 10, .ends_text = ends});
  EXPECT_EQ(got.prompts[0][0].ids.size(), 3U);
  EXPECT_EQ(num_calls, 3U);
}

TEST(Generate, NoRepeatedPair_OccursInGreedyOrBeams) {
  const auto model = small_model(64);
  for (const int64_t num_beams : {1, 3}) {
    const Generation got =
        generate(*model, Axis(), {{1, 2}},
                 {.max_new_tokens = 40, .num_beams = num_beams, .no_repeat_ngram_size = 2});
    Ids ids{1, 2};
    const Ids& fresh = got.prompts[0][0].ids;
    ids.insert(ids.end(), fresh.begin(), fresh.end());
    std::set<std::pair<int64_t, int64_t>> pairs;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      EXPECT_TRUE(pairs.insert({ids[i], ids[i + 1]}).second) << "beams " << num_beams;
    }
  }
}

/// A model whose rotary frequencies change after 6 tokens, and much.
std::unique_ptr<Model> longrope_model() {
  auto model = make_model(Json::parse(
      R"({"model_type": "phi3", "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24,
          "num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.6,
          "pad_token_id": null, "eos_token_id": null, "max_position_embeddings": 12,
          "original_max_position_embeddings": 6, "rope_scaling": {"type": "longrope",
          "short_factor": [1, 1, 1, 1], "long_factor": [9, 7, 5, 3]}})",
      "test"));
  materialize(*model, {.seed = 3, .dtype = at::kFloat});
  return model;
}

Ids joined(Ids ids, const Ids& more, size_t count) {
  ids.insert(ids.end(), more.begin(), more.begin() + static_cast<std::ptrdiff_t>(count));
  return ids;
}

// Oracle: each id by a run of its own, which begins with all ids before it.
TEST(Generate, GreedyPastTheLengthOfLongRope_EqualsRunsWithoutACache) {
  const auto model = longrope_model();
  for (const std::vector<Ids>& prompts : {std::vector<Ids>{{1, 2, 3}}, {{1, 2, 3, 4}, {5, 6}}}) {
    const Generation got = generate(*model, Axis(), prompts, {.max_new_tokens = 8});
    for (size_t n = 0; n < 8; ++n) {
      std::vector<Ids> before;
      for (size_t p = 0; p < prompts.size(); ++p) {
        before.push_back(joined(prompts[p], got.prompts[p][0].ids, n));
      }
      const Generation one = generate(*model, Axis(), before, {.max_new_tokens = 1});
      for (size_t p = 0; p < prompts.size(); ++p) {
        EXPECT_EQ(one.prompts[p][0].ids[0], got.prompts[p][0].ids[n]) << p << " " << n;
      }
    }
  }
}

// The longer prompt ends at the last position, the shorter one continues.
TEST(Generate, FinishedRowPastTheLengthOfLongRope_DoesNotEndTheOthers) {
  const auto model = longrope_model();
  const std::vector<Ids> prompts{{1, 2, 3, 4, 5, 6}, {7}};
  const Generation got = generate(*model, Axis(), prompts, {.max_new_tokens = 100});
  EXPECT_EQ(got.prompts[0][0].ids.size(), 7U);
  EXPECT_EQ(got.prompts[1][0].ids.size(), 12U);
}

// Oracle: log-probabilities of the ids by forward passes of all ids before them.
TEST(Generate, BeamsPastTheLengthOfLongRope_HaveTheScoresOfRunsWithoutACache) {
  const at::NoGradGuard no_grad;
  const auto model = longrope_model();
  const Ids prompt{1, 2, 3};
  const Generation got = generate(*model, Axis(), {prompt},
                                  {.max_new_tokens = 8, .num_beams = 3, .num_return_sequences = 3});
  for (const Sequence& sequence : got.prompts[0]) {
    double sum = 0;
    for (size_t n = 0; n < sequence.ids.size(); ++n) {
      const Tensor ids = at::tensor(joined(prompt, sequence.ids, n), at::kLong).unsqueeze(0);
      const Tensor logits = (*model)(DTensor(ids, Axis(), Replicate{}), {}).local()[0][-1];
      sum += at::log_softmax(logits, 0)[sequence.ids[n]].item<double>();
    }
    EXPECT_NEAR(sequence.score, sum / static_cast<double>(sequence.ids.size()), 1e-4);
  }
}

TEST(Generate, EveryToken_IsReportedWhenItIsGenerated) {
  const auto model = small_model();
  std::vector<Ids> reported(2);
  const Generation got = generate(*model, Axis(), {{1}, {2, 3}}, {.max_new_tokens = 5},
                                  [&](int64_t prompt, int64_t sequence, int64_t id) {
                                    EXPECT_EQ(sequence, 0);
                                    reported[static_cast<size_t>(prompt)].push_back(id);
                                  });
  EXPECT_EQ(reported[0], got.prompts[0][0].ids);
  EXPECT_EQ(reported[1], got.prompts[1][0].ids);
}

// Oracle: one rank. The plan is that of PyTorch's tutorial, which states that the last layer gets a
// sharded sequence.
TEST(Generate, PlanThatStatesAShardedInputOfTheHead_GivesTheIdsOfOneRank) {
  const Plan plan = {
      {"tok_embeddings", Rowwise{.input = Replicate{}, .output = Shard{1}}},
      {"layers.*.attention_norm", SequenceParallel{}},
      {"layers.*.attention", PrepareModuleInput{.input = Shard{1}, .desired = Replicate{}}},
      {"layers.*.attention.{wq,wk,wv}", Colwise{}},
      {"layers.*.attention.wo", Rowwise{.output = Shard{1}}},
      {"layers.*.ffn_norm", SequenceParallel{}},
      {"layers.*.feed_forward", PrepareModuleInput{.input = Shard{1}, .desired = Replicate{}}},
      {"layers.*.feed_forward.{w1,w3}", Colwise{}},
      {"layers.*.feed_forward.w2", Rowwise{.output = Shard{1}}},
      {"norm", SequenceParallel{}},
      {"output", Colwise{.input = Shard{1}, .output = Shard{-1}}},
  };
  const std::vector<Ids> prompts = {{1, 7, 3}, {5}};
  for (const int64_t num_beams : {1, 2}) {
    const GenerateSettings settings{.max_new_tokens = 6, .num_beams = num_beams};
    const Generation want = generate(*small_model(), Axis(), prompts, settings);
    test::on_ranks(2, [&](const Axis& tp) {
      const auto model = small_model();
      parallelize_module(*model, tp, plan);
      const Generation got = generate(*model, tp, prompts, settings);
      for (size_t p = 0; p < prompts.size(); ++p) {
        EXPECT_EQ(got.prompts[p][0].ids, want.prompts[p][0].ids) << num_beams;
      }
    });
  }
}

// Oracle: the whole model on the last id, which alone decides the next one.
TEST(Generate, ModelWithANamedOutput_GivesTheIdsOfItsForward) {
  const at::NoGradGuard no_grad;
  test::ReadsStart model(Json::parse(
      R"({"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2})", "config.json"));
  materialize(model, {.seed = 2});
  const Generation got = generate(model, Axis(), {{1, 2, 3}}, {.max_new_tokens = 6});
  int64_t id = 3;
  for (const int64_t next : got.prompts[0][0].ids) {
    const DTensor ids(at::full({1, 1}, id, at::kLong), Axis(), Replicate{});
    id = model(ids, Context()).local().argmax(-1).item<int64_t>();
    EXPECT_EQ(next, id);
  }
  EXPECT_EQ(got.prompts[0][0].ids.size(), 6U);
}

}  // namespace
}  // namespace cleave::generate_test
