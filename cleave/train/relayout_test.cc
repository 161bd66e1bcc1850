// A run that was saved on one layout resumes on another. Oracle: the uninterrupted run on one rank.
// The losses must agree within the bounds of layout invariance (trainer_test.cc).
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/comm/api/world.h"
#include "cleave/file/file.h"
#include "cleave/tokenizer/tokenizer.h"
#include "cleave/train/options.h"
#include "tests/support/paths.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"

namespace cleave::relayout_test {
namespace {

using test::losses;
using test::TempFolder;

struct Layout {
  int tp = 1, dp = 1, pp = 1;
};

std::string name_of(const Layout& l) {
  return str("tp", l.tp, "dp", l.dp, l.pp > 1 ? str("pp", l.pp) : "");
}

/// One family, saved on one layout and resumed on another.
struct Move {
  std::string family;
  Layout from, to;
};

std::string name_of(const Move& move) {
  return str(move.family, '_', name_of(move.from), "_to_", name_of(move.to));
}

// An epoch has 15 steps, so the 20 resumed steps cross its end.
constexpr int64_t kSaved = 10, kSteps = 30;
constexpr int64_t kRows = 60, kSeqLen = 32, kBatch = 4;
constexpr int64_t kHidden = 24, kWide = 40, kLayers = 4, kVocab = 257;

// Llama: 6 heads over 2 key-value heads, tied. GPT-2: a fused QKV matrix, and dropout, whose masks
// depend on the step and the position in the whole tensor.
nlohmann::ordered_json config_of(const std::string& family) {
  if (family == "llama") {
    return {{"model_type", "llama"},         {"vocab_size", kVocab},
            {"hidden_size", kHidden},        {"intermediate_size", kWide},
            {"num_hidden_layers", kLayers},  {"num_attention_heads", 6},
            {"num_key_value_heads", 2},      {"head_dim", 4},
            {"max_position_embeddings", 64}, {"tie_word_embeddings", true},
            {"initializer_range", 0.1}};
  }
  return {{"model_type", "gpt2"}, {"vocab_size", kVocab},    {"n_embd", kHidden},
          {"n_inner", kWide},     {"n_layer", kLayers},      {"n_head", 6},
          {"n_positions", 64},    {"embd_pdrop", 0.1},       {"attn_pdrop", 0.1},
          {"resid_pdrop", 0.1},   {"initializer_range", 0.1}};
}

/// The runs of one family, with a starting model and a text.
class Runs {
 public:
  Runs(const std::string& family, const std::string& dtype) : dtype_(dtype) {
    const std::string text = read_file(test::source_file("LICENSE"));
    std::ofstream(path("text")) << text.substr(0, kRows * kSeqLen);
    write_model(family, "model", false);
    write_model(family, "moved", true);
  }

  TrainOptions options(const std::string& out, const Layout& layout,
                       const std::string& model = "model") {
    TrainOptions o;
    o.model = path(model);
    o.data = {path("text")};
    o.out = path(out);
    o.tp = layout.tp;
    o.dp = layout.dp;
    o.pp = layout.pp;
    o.seq_len = kSeqLen;
    o.batch_size = kBatch;
    o.steps = kSteps;
    o.lr = 2e-3;
    o.dtype = dtype_;
    o.gemm = "mkl";
    o.threads_per_rank = 1;
    return o;
  }

  /// The losses of a run that moves from `move.from` to `move.to` after kSaved steps.
  std::vector<double> moved(const Move& move) {
    TrainOptions o = options(name_of(move), move.from);
    o.save_every = kSaved;
    losses(o);
    forget_after(o.out, kSaved);
    o = options(name_of(move), move.to);
    o.resume = true;
    return losses(o);
  }

 private:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

  /// Removes later checkpoints, as after a crash.
  static void forget_after(const std::string& run, int64_t step) {
    for (const auto& checkpoint : list_checkpoints(run)) {
      if (checkpoint.filename() != checkpoint_name(step)) std::filesystem::remove_all(checkpoint);
    }
    std::ofstream(run + "/latest") << checkpoint_name(step) << '\n';
  }

  /// Writes starting weights; if `moved`, each is one ulp larger.
  void write_model(const std::string& family, const std::string& name, bool moved) {
    run_ranks(1, [&](World&) {
      auto model = make_model(Json::parse(config_of(family).dump(), "config.json"));
      materialize(*model, {.seed = 5});
      for (const auto& p : model->parameters()) {
        const Tensor weight = p->leaf().detach();
        const Tensor up = at::full_like(weight, std::numeric_limits<float>::infinity());
        if (moved) weight.copy_(at::nextafter(weight, up));
      }
      Checkpoint checkpoint;
      checkpoint.model = model.get();
      checkpoint.files = byte_tokenizer_files();
      save_checkpoint(path(name), checkpoint, {});
    });
  }

  TempFolder folder_;
  std::string dtype_;
};

class Relayout : public testing::TestWithParam<Move> {};

// In fp64 only the order of sums differs.
TEST_P(Relayout, NextTwentyLosses_AreThoseOfTheUninterruptedRun) {
  Runs runs(GetParam().family, "fp64");
  const auto want = losses(runs.options("uninterrupted", {1, 1}));
  const auto got = runs.moved(GetParam());
  ASSERT_EQ(want.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(got.size(), want.size());
  EXPECT_GT(std::abs(want[kSaved] - want[kSaved + 1]), 1e-6);  // an offset by one step is visible
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-9) << "step " << i + 1;
}

std::vector<Layout> all_layouts() {
  std::vector<Layout> layouts;
  for (const int dp : {1, 2}) {
    for (const int tp : {1, 2, 3, 4}) layouts.push_back({tp, dp});
  }
  return layouts;
}

/// Each tp to each tp. Every pair of values of any two of the five choices occurs.
std::vector<Move> pairwise_moves() {
  std::vector<Move> moves;
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {
      moves.push_back({(a / 2 + b) % 2 == 0 ? "llama" : "gpt2",
                       {.tp = a + 1, .dp = (a + b) % 2 + 1},
                       {.tp = b + 1, .dp = (a / 2 + b / 2) % 2 + 1}});
    }
  }
  return moves;
}

std::vector<Move> all_moves() {
  std::vector<Move> moves;
  for (const char* family : {"llama", "gpt2"}) {
    for (const Layout& from : all_layouts()) {
      for (const Layout& to : all_layouts()) moves.push_back({family, from, to});
    }
  }
  return moves;
}

INSTANTIATE_TEST_SUITE_P(Pairwise, Relayout, testing::ValuesIn(pairwise_moves()),
                         [](const auto& move) { return name_of(move.param); });
std::vector<Move> moves_of_stages() {
  return {{"llama", {.tp = 1}, {.pp = 4}},
          {"gpt2", {.pp = 4}, {.tp = 3}},
          {"llama", {.tp = 2, .pp = 2}, {.dp = 2, .pp = 2}},
          {"gpt2", {.dp = 2}, {.tp = 2, .pp = 2}},
          {"llama", {.pp = 2}, {.pp = 4}}};
}

INSTANTIATE_TEST_SUITE_P(Stages, Relayout, testing::ValuesIn(moves_of_stages()),
                         [](const auto& move) { return name_of(move.param); });
INSTANTIATE_TEST_SUITE_P(Full, Relayout, testing::ValuesIn(all_moves()),
                         [](const auto& move) { return name_of(move.param); });

// In fp32 the bound is the drift of the uninterrupted run when every weight changes by one ulp.
TEST(RelayoutInFp32, NextTwentyLosses_StayWithinTheDriftOfOneUlp) {
  Runs runs("llama", "fp32");
  const auto want = losses(runs.options("uninterrupted", {1, 1}));
  const auto moved = losses(runs.options("ulp", {1, 1}, "moved"));
  const double terms = kLayers * (4 * kHidden + 3 * kWide) + kVocab;
  double drift = std::numeric_limits<float>::epsilon() * std::sqrt(terms) * want.front();
  for (size_t i = 0; i < want.size(); ++i) drift = std::max(drift, std::abs(moved[i] - want[i]));
  for (const Move& move : {Move{"llama", {3, 1}, {2, 2}}, Move{"llama", {2, 2}, {4, 1}}}) {
    const auto got = runs.moved(move);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 3 * drift) << "step " << i + 1 << " " << name_of(move);
    }
  }
}

}  // namespace
}  // namespace cleave::relayout_test
