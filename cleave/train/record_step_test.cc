#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include <gtest/gtest.h>

#include "cleave/file/file.h"
#include "cleave/report/metrics.h"
#include "cleave/report/replay.h"
#include "tests/support/recorded_step.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"

namespace cleave::record_step_test {
namespace {

using json = nlohmann::json;
using test::losses;
using test::TempFolder;
using test::trace_of;

constexpr int kStep = 3;

struct Case {
  const char* name;
  void (*set)(TrainOptions& o);
};
const Case kCases[] = {
    {"OneRank", [](TrainOptions&) {}},
    {"Tp", [](TrainOptions& o) { o.tp = 2; }},
    {"SequenceParallel",
     [](TrainOptions& o) {
       o.tp = 2;
       o.sequence_parallel = true;
     }},
    {"Pp",
     [](TrainOptions& o) {
       o.pp = 2;
       o.micro_batch_size = 1;
     }},
    {"Zero1",
     [](TrainOptions& o) {
       o.dp = 2;
       o.zero = 1;
       o.dtype = "bf16";
     }},
    {"FsdpRecompute",
     [](TrainOptions& o) {
       o.dp = 2;
       o.fsdp = true;
       o.recompute = "full";
       o.dtype = "bf16";
     }},
    {"TpPpDp",
     [](TrainOptions& o) {
       o.tp = 2;
       o.pp = 2;
       o.dp = 2;
       o.micro_batch_size = 1;
     }},
};

class RecordedLayout : public testing::TestWithParam<Case> {};

// Oracle: metrics.jsonl, which has its own sums.
void check_totals(const TrainOptions& o, const json& trace) {
  const StepMetrics m = read_metrics(o.out + "/metrics.jsonl").at(kStep - 1);
  const json& summary = trace.at("otherData").at("replay");
  EXPECT_EQ(summary.at("step"), kStep);
  EXPECT_EQ(summary.at("metrics").at("loss"), m.loss);
  EXPECT_EQ(summary.at("metrics").at("step_ms"), m.step_ms);
  // The same times, summed in another order and shifted to another origin.
  EXPECT_NEAR(summary.at("comm_ms").get<double>(), m.comm_ms, 1e-6 * (1 + m.comm_ms));
  EXPECT_NE(read_file(o.out + "/replay.html").find("id=\"data\">{"), std::string::npos);
}

void check_kinds(const TrainOptions& o, const json& trace) {
  std::map<int, std::map<std::string, int>> kinds;  // of each rank
  for (const json& e : trace.at("traceEvents")) {
    if (e.at("ph") == "B") ++kinds[e.at("pid").get<int>()][e.at("cat").get<std::string>()];
  }
  ASSERT_EQ(static_cast<int>(kinds.size()), std::max(1, o.tp) * o.pp * o.dp);  // tp 0: the default
  for (auto& [rank, of_rank] : kinds) {
    for (const char* kind : {"phase", "pipeline", "forward", "backward", "optimizer"}) {
      EXPECT_GT(of_rank[kind], 0) << kind;
    }
    EXPECT_EQ(of_rank["recompute"] > 0, o.recompute == "full");
    EXPECT_EQ(of_rank["collective"] > 0, kinds.size() > 1);
  }
}

// Oracle of the losses: the same run without a recording, bit for bit.
TEST_P(RecordedLayout, Step_HasTheSameLossesAndTheTotalsOfMetrics) {
  const TempFolder folder;
  TrainOptions o = test::small_run(folder);
  GetParam().set(o);
  const std::vector<double> want = losses(o);
  o.out = folder / "recorded";
  o.record_step = kStep;
  EXPECT_EQ(losses(o), want);
  const json trace = trace_of(o.out);
  check_totals(o, trace);
  check_kinds(o, trace);
  EXPECT_EQ(test::unpaired_collectives(trace), std::set<std::string>());
}

INSTANTIATE_TEST_SUITE_P(RecordStep, RecordedLayout, testing::ValuesIn(kCases),
                         [](const auto& each) { return std::string(each.param.name); });

// Oracle: the forecast, which counts the collectives of the same layers without data.
TEST(RecordStep, BytesOfTp_AreThoseOfTheForecast) {
  const TempFolder folder;
  TrainOptions o = test::small_run(folder);
  o.tp = 2;
  o.record_step = kStep;
  cleave_train(o);
  const json summary = trace_of(o.out).at("otherData").at("replay");
  const double sent = summary.at("ranks").at(0).at("traffic").at("tp").at("sent");
  const double forecast = summary.at("forecast").at("ranks").at(0).at("sent").at("tp");
  EXPECT_GT(forecast, 0);
  // The norm and other scalars of a step are not in the forecast.
  EXPECT_NEAR(sent, forecast, 0.01 * forecast);
}

// Oracle: the whole weight, which the ranks' parts must cover once.
TEST(RecordStep, Weights_FsdpRanksHoldDisjointRangesOfEach) {
  const TempFolder folder;
  TrainOptions o = test::small_run(folder);
  o.dp = 2;
  o.fsdp = true;
  o.record_step = kStep;
  cleave_train(o);
  const json summary = trace_of(o.out).at("otherData").at("replay");
  std::map<int, std::vector<std::pair<int64_t, int64_t>>> parts;
  for (const json& rank : summary.at("ranks")) {
    for (const json& w : rank.at("weights")) {
      EXPECT_EQ(w.at(6), 1);  // gathered
      parts[w.at(0).get<int>()].emplace_back(w.at(4).get<int64_t>(), w.at(5).get<int64_t>());
    }
  }
  ASSERT_EQ(parts.size(), summary.at("weights").size());
  for (auto& [index, ranges] : parts) {
    int64_t numel = 1;
    for (const json& size : summary.at("weights").at(static_cast<size_t>(index)).at(1)) {
      numel *= size.get<int64_t>();
    }
    std::erase_if(ranges, [](const auto& range) { return range.first == range.second; });
    std::sort(ranges.begin(), ranges.end());
    int64_t at = 0;
    for (const auto& [begin, end] : ranges) {
      EXPECT_EQ(begin, at);
      at = end;
    }
    EXPECT_EQ(at, numel);
  }
}

TEST(RecordStep, StepBeyondTheRun_IsRefused) {
  const TempFolder folder;
  TrainOptions o = test::small_run(folder);
  o.record_step = 5;
  try {
    cleave_train(o);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_STREQ(error.what(), "--record-step is 5; expected at most the 4 steps of the run");
  }
}

}  // namespace
}  // namespace cleave::record_step_test
