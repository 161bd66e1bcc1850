#include "cleave/generate/record_step.h"

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "cleave/generate/options.h"
#include "cleave/text/json.h"
#include "tests/support/golden.h"
#include "tests/support/recorded_step.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

// `cleave generate --record-step` on two ranks, as the front end calls it.
namespace cleave::generate_record_test {
namespace {

using json = nlohmann::json;
using test::events_of;
using test::TempFolder;
using test::trace_of;

constexpr int kRanks = 2;
constexpr int64_t kFloat = sizeof(float), kDouble = sizeof(double);

class RecordedGenerate : public ::testing::Test {
 protected:
  RecordedGenerate() {
    o_.model = test::golden_folder("llama-mha");
    o_.prompt_ids = {{5, 6, 7}, {8, 9}, {3}};
    o_.tp = kRanks;
    o_.max_new_tokens = 6;
    o_.json = true;
    o_.eos_id = std::nullopt;
  }

  /// The ids of all sequences that a run prints.
  std::string ids() {
    ::testing::internal::CaptureStdout();
    cleave_generate(o_);
    std::istringstream lines(::testing::internal::GetCapturedStdout());
    std::string out;
    for (std::string line; std::getline(lines, line);) {
      const json sequences = json::parse(line).at("sequences");
      for (const json& s : sequences) out += s.at("ids").dump();
    }
    return out;
  }

  /// Records a step; returns its trace.
  json record(int64_t step) {
    o_.record_step = step;
    o_.out = folder_ / "page";
    ids();
    return trace_of(o_.out);
  }

  [[nodiscard]] int64_t config(const char* key) const {
    return Json::parse_file(o_.model + "/config.json").at(key).as_int();
  }
  [[nodiscard]] int64_t layers() const { return config("num_hidden_layers"); }

  /// Expects the collectives of a pass over `tokens` tokens of each prompt. Oracle: Megatron's
  /// count, that is one sum after the embedding, whose vocabulary is sharded, and two in each
  /// block; and for the next token of each prompt, from each rank two numbers of its softmax and
  /// three of its best candidate.
  void expect_calls(const json& trace, int64_t tokens) {
    const auto prompts = static_cast<int64_t>(o_.prompt_ids.size());
    const int64_t sums = (2 * layers() + 1) * prompts * tokens * config("hidden_size") * kFloat;
    const int64_t candidates = (2 + 3) * prompts * kDouble;  // of a rank
    for (int rank = 0; rank < kRanks; ++rank) {
      std::map<std::string, int64_t> bytes, calls;
      for (const json& e : events_of(trace, "collective", rank)) {
        const std::string op = e.at("args").at("op");
        bytes[op] += e.at("args").at("bytes").get<int64_t>();
        ++calls[op];
      }
      EXPECT_EQ(calls["all_reduce"], 2 * layers() + 1);
      EXPECT_EQ(bytes["all_reduce"], sums);
      EXPECT_EQ(calls["all_gather"], 2);
      EXPECT_EQ(bytes["all_gather"], kRanks * candidates);
      EXPECT_EQ(calls.size(), 2U);
      const json traffic = test::rank_summary(trace, rank).at("traffic");
      EXPECT_EQ(traffic.at("tp").at("sent"), sums + candidates);  // a sum of b bytes sends b
    }
    EXPECT_EQ(test::unpaired_collectives(trace), std::set<std::string>());
  }

  TempFolder folder_;
  GenerateOptions o_;
};

TEST_F(RecordedGenerate, Tokens_AreThoseOfAnUnrecordedRun) {
  const std::string wanted = ids();
  for (const int64_t step : {1, 3, 6}) {
    o_.record_step = step;
    o_.out = folder_ / std::to_string(step);
    EXPECT_EQ(ids(), wanted);
    EXPECT_EQ(trace_of(o_.out).at("otherData").at("replay").at("step"), step);
    EXPECT_TRUE(std::filesystem::exists(folder_ / std::to_string(step) / "replay.html"));
  }
}

TEST_F(RecordedGenerate, BytesOfADecodingStep_AreTheClosedForm) {
  expect_calls(record(2), 1);
}

// Shorter prompts are padded to the longest.
TEST_F(RecordedGenerate, BytesOfTheFirstStep_AreThoseOfThePrompts) {
  expect_calls(record(1), 3);
}

TEST_F(RecordedGenerate, Beams_AreRecordedWithTheSameTokens) {
  o_.num_beams = 2;
  const std::string wanted = ids();
  o_.record_step = 2;
  o_.out = folder_ / "page";
  EXPECT_EQ(ids(), wanted);
  const json trace = trace_of(o_.out);
  EXPECT_EQ(test::unpaired_collectives(trace), std::set<std::string>());
  for (int rank = 0; rank < kRanks; ++rank) {
    int64_t sums = 0;
    for (const json& e : events_of(trace, "collective", rank)) {
      if (e.at("args").at("op") == "all_reduce") sums += e.at("args").at("bytes").get<int64_t>();
    }
    EXPECT_EQ(sums, (2 * layers() + 1) * 3 * 2 * config("hidden_size") * kFloat);
  }
}

// Oracle: the sizes of this rank's shards, and of the keys and values of all layers' heads. Weights
// in panels are padded.
TEST_F(RecordedGenerate, Memory_IsWeightsAndTheCache) {
  const json trace = record(2);
  const auto prompts = static_cast<int64_t>(o_.prompt_ids.size());
  const int64_t capacity = 3 + o_.max_new_tokens;
  const int64_t cache = 2 * layers() * prompts * capacity * config("hidden_size") / kRanks * kFloat;
  std::map<int, std::set<int64_t>> weights;
  for (const json& e : trace.at("traceEvents")) {
    if (e.at("ph") != "C") continue;
    weights[e.at("pid")].insert(e.at("args").at("weights").get<int64_t>());
    EXPECT_GE(e.at("args").at("activations and buffers"), cache);
    EXPECT_EQ(e.at("args").at("gradients"), 0);
  }
  ASSERT_EQ(weights.size(), static_cast<size_t>(kRanks));
  for (const auto& [rank, bytes] : weights) {
    ASSERT_EQ(bytes.size(), 1U);  // the same in the whole step
    int64_t held = 0;
    const json weights_of_rank = test::rank_summary(trace, rank).at("weights");
    for (const json& w : weights_of_rank) {
      held += w.at(3).get<int64_t>() * kFloat;  // [index, dim, ranges, elements, ...]
    }
    EXPECT_GE(*bytes.begin(), held);
    EXPECT_LE(*bytes.begin(), 2 * held);
  }
}

TEST_F(RecordedGenerate, EveryRank_HasTheLayersOfForwardOnly) {
  const json trace = record(2);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::set<std::string> names;
    for (const json& e : events_of(trace, "forward", rank)) names.insert(e.at("name"));
    for (int64_t i = 0; i < layers(); ++i) {
      EXPECT_TRUE(names.contains(str("model.layers.", i, ".mlp.down_proj"))) << i;
    }
    EXPECT_TRUE(names.contains("lm_head"));
    EXPECT_TRUE(events_of(trace, "backward", rank).empty());
  }
}

TEST_F(RecordedGenerate, TextThatEndsEarlier_IsWarnedAboutAndLeavesNoFolder) {
  o_.prompt_ids = {{5, 6, 7}};
  o_.eos_id = json::parse(ids()).at(0).get<int64_t>();  // the first token
  o_.record_step = 4;
  o_.out = folder_ / "page";
  ::testing::internal::CaptureStderr();
  ids();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "cleave: warning: the texts ended after step 1, before --record-step 4; no step is "
            "recorded\n");
  EXPECT_FALSE(std::filesystem::exists(o_.out));
}

TEST_F(RecordedGenerate, OptionsThatDoNotFit_AreRefused) {
  const auto expect_refused = [&](const std::string& text, const auto& set) {
    const GenerateOptions before = o_;
    o_.record_step = 2;
    o_.out = folder_ / "page";
    set();
    const Error error = test::thrown_by([&] { cleave_generate(o_); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_EQ(error.what(), text);
    o_ = before;
  };
  expect_refused("--record-step writes replay.html into a folder; give it with --out DIR",
                 [&] { o_.out = ""; });
  expect_refused("--out x is the folder of --record-step, which is not given; give both or neither",
                 [&] {
                   o_.record_step = 0;
                   o_.out = "x";
                 });
  expect_refused(
      "--record-step is 7; expected at most the 6 steps of --max-new-tokens, one for each token",
      [&] { o_.record_step = 7; });
  expect_refused("--record-step records a step of --prompt, not of --chat; leave one of them out",
                 [&] { o_.chat = true; });
  expect_refused(
      "--record-step records ranks on the CPU and does not support --device cuda; leave it out",
      [&] { o_.device = "cuda"; });
  const std::string file = folder_ / "file";
  std::ofstream(file) << "text";
  expect_refused("--out " + file + " is a file; give a folder", [&] { o_.out = file; });
}

}  // namespace
}  // namespace cleave::generate_record_test
