#include "cleave/report/replay.h"

#include <map>
#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave::replay_test {
namespace {

using json = nlohmann::json;

/// One rank of two that all-reduces from `begin` to `end`, inside a layer from 1 to 9.
RankRecording recording(int rank, double begin, double end) {
  RankRecording r{.rank = rank,
                  .host = "a",
                  .step_s = 10,
                  .comm_end_s = 10,
                  .products_s = 2.5,
                  .attention_s = 0.5};
  r.names = {"layer", "site"};
  r.axes = {{.name = "tp", .ranks = {0, 1}}};
  r.calls = {{.op = "all_reduce", .bytes = 8, .sent = 8}};
  r.events = {
      {.kind = EventKind::kForward, .begin_s = 1, .end_s = 9},
      {.kind = EventKind::kCollective, .name = 1, .begin_s = begin, .end_s = end, .call = 0}};
  r.memory = {{.at_s = 9, .bytes = {1, 2, 3, 4, 5}}};
  r.weights = {{.shape = {4}, .dim = 0, .ranges = {{0, 2}}, .numel = 2, .flat_end = 2}};
  return r;
}

Replay two_ranks() {
  Replay replay{.title = "a </script> title", .places = {"rank 0", "rank 1"}, .num_cores = 2};
  replay.ranks = {recording(0, 2, 6), recording(1, 5, 7)};
  set_waiting(replay.ranks);
  return replay;
}

TEST(Replay, Collective_WaitsUntilTheLastPartnerCallsIt) {
  const Replay replay = two_ranks();
  EXPECT_DOUBLE_EQ(replay.ranks[0].events[1].wait_s, 3);  // from 2 to 5
  EXPECT_DOUBLE_EQ(replay.ranks[1].events[1].wait_s, 0);
  EXPECT_DOUBLE_EQ(replay.ranks[0].events[0].wait_s, 0);  // a layer does not wait
}

TEST(Replay, Recv_WaitsForTheSenderOfTheSameMessage) {
  std::vector<RankRecording> ranks{recording(0, 2, 6), recording(1, 5, 7)};
  ranks[0].calls = {{.op = "recv", .peer = 1, .bytes = 8}};
  ranks[1].calls = {{.op = "send", .peer = 0, .bytes = 8, .sent = 8}};
  set_waiting(ranks);
  EXPECT_DOUBLE_EQ(ranks[0].events[1].wait_s, 3);
  EXPECT_DOUBLE_EQ(ranks[1].events[1].wait_s, 0);
  ranks[0].calls[0].number = 1;  // another message
  set_waiting(ranks);
  EXPECT_DOUBLE_EQ(ranks[0].events[1].wait_s, 0);
}

TEST(Replay, RanksOfAHost_ShareItsClock) {
  std::vector<RankRecording> ranks{recording(0, 2, 6), recording(1, 2, 6), recording(2, 2, 6)};
  ranks[0].aligned_s = 100;
  ranks[1].aligned_s = 100.5;
  ranks[2].aligned_s = 7000;  // the clock of another host
  ranks[2].host = "b";
  align(ranks);
  EXPECT_DOUBLE_EQ(ranks[0].events[1].begin_s, 2);
  EXPECT_DOUBLE_EQ(ranks[1].events[1].begin_s, 2.5);
  EXPECT_DOUBLE_EQ(ranks[2].events[1].begin_s, 2);
}

TEST(Replay, CommSeconds_CountTheRanksThreadBeforeTheUpdate) {
  RankRecording r = recording(0, 2, 6);
  EXPECT_DOUBLE_EQ(comm_seconds(r), 4);
  r.events[1].track = 1;  // on a helper thread
  EXPECT_DOUBLE_EQ(comm_seconds(r), 0);
  r = recording(0, 2, 6);
  r.comm_end_s = 2;
  EXPECT_DOUBLE_EQ(comm_seconds(r), 0);
  r = recording(0, 2, 6);
  r.axes[0].name = "world";
  EXPECT_DOUBLE_EQ(comm_seconds(r), 0);
}

TEST(Replay, Json_ReadsBackTheSame) {
  const RankRecording r = recording(1, 2, 6);
  EXPECT_EQ(json_of(recording_of(json_of(r))), json_of(r));
  EXPECT_EQ(recording_of(json_of(r)).weights[0].ranges[0][1], 2);
  EXPECT_EQ(recording_of(json_of(r)).products_s, 2.5);
  EXPECT_THROW((void)recording_of("{}"), Error);
  EXPECT_THROW((void)recording_of("["), Error);
}

/// Fails unless begin and end are balanced in each thread, times never fall, and each flow has two
/// ends. Returns the number of flows.
size_t check_trace(const json& trace) {
  std::map<std::pair<int, int>, int> depth;
  std::map<std::pair<int, int>, double> last;
  std::map<int, std::string> flows;
  for (const json& e : trace.at("traceEvents")) {
    const std::string phase = e.at("ph");
    if (phase == "M" || phase == "C") continue;
    const std::pair<int, int> thread{e.at("pid"), e.at("tid")};
    EXPECT_GE(e.at("ts").get<double>(), last[thread]);
    last[thread] = e.at("ts");
    depth[thread] += phase == "B" ? 1 : phase == "E" ? -1 : 0;
    EXPECT_GE(depth[thread], 0);
    if (phase == "s" || phase == "f") flows[e.at("id").get<int>()] += phase;
  }
  for (const auto& [thread, open] : depth) EXPECT_EQ(open, 0);
  for (const auto& [id, ends] : flows) EXPECT_TRUE(ends == "sf" || ends == "fs") << ends;
  return flows.size();
}

TEST(Replay, ChromeTrace_IsBalancedAndItsFlowsHaveTwoEnds) {
  Replay replay = two_ranks();
  // A neighbour that begins where the layer ends, and an event that rounding leaves open too long.
  replay.ranks[0].events.push_back({.kind = EventKind::kBackward, .begin_s = 9, .end_s = 9.5});
  replay.ranks[0].events.push_back(
      {.kind = EventKind::kCollective, .name = 1, .begin_s = 9.2, .end_s = 9.6, .call = -1});
  const json trace = json::parse(chrome_trace(replay));
  EXPECT_EQ(check_trace(trace), 1U);  // from rank 1, which came last, to rank 0
  for (const json& e : trace.at("traceEvents")) {
    if (e.at("ph") == "s") {
      EXPECT_EQ(e.at("pid"), 1);
    }
    if (e.at("ph") == "f") {
      EXPECT_DOUBLE_EQ(e.at("ts").get<double>(), 5e6);  // the wait is over
    }
  }
}

TEST(Replay, Shorten_LeavesOutTheShortestLayersFirst) {
  std::vector<RankRecording> ranks{recording(0, 2, 2.5), recording(1, 5, 7)};
  ranks[1].events[0].end_s = 2;  // the shortest layer
  shorten(ranks, 3);
  EXPECT_EQ(ranks[0].events.size(), 2U);
  ASSERT_EQ(ranks[1].events.size(), 1U);
  EXPECT_EQ(ranks[1].events[0].kind, EventKind::kCollective);
  EXPECT_EQ(ranks[1].num_left_out, 1);
}

TEST(Replay, PageOf64Ranks_HasAtMost10MBAndCountsWhatItLeavesOut) {
  constexpr int kRanks = 64, kEvents = 3000;
  Replay replay{.title = "many", .num_cores = 2};
  for (int rank = 0; rank < kRanks; ++rank) {
    RankRecording r = recording(rank, 2, 6);
    r.events.clear();
    for (int i = 0; i < kEvents; ++i) {
      r.events.push_back({.kind = EventKind::kForward,
                          .begin_s = 0.001 * i,
                          .end_s = 0.001 * i + 1e-7 * (i + 1),
                          .cpu_begin_s = 0.0009 * i,
                          .cpu_s = 1e-7 * i});
    }
    replay.ranks.push_back(std::move(r));
    replay.places.push_back("rank");
  }
  const std::string page = replay_page(replay);
  EXPECT_LE(page.size(), 10'000'000U);
  const size_t begin = page.find("id=\"data\">") + 10;
  const json data = json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  int64_t left_out = 0;
  size_t shown = 0;
  for (const json& rank : data.at("ranks")) {
    left_out += rank.at("left_out").get<int64_t>();
    shown += rank.at("events").size() / 9;
  }
  EXPECT_EQ(static_cast<int64_t>(shown) + left_out, kRanks * kEvents);
  EXPECT_GT(shown, 100'000U);
}

TEST(Replay, Summary_HasTheForecastByKindAndTheTimesOfProducts) {
  Replay replay = two_ranks();
  replay.forecast = {{.memory = 8}, {.memory = 8}};
  replay.forecast_time = {{"matrix products", 2}, {"bubble and waiting", 0.25}};
  const json summary = json::parse(chrome_trace(replay)).at("otherData").at("replay");
  EXPECT_EQ(summary.at("forecast").at("time_ms"),
            json({{"matrix products", 2000.0}, {"bubble and waiting", 250.0}}));
  EXPECT_EQ(summary.at("ranks").at(1).at("products_us"), 2.5e6);
  EXPECT_EQ(summary.at("ranks").at(1).at("attention_us"), 0.5e6);
}

TEST(Replay, Page_EscapesTitles) {
  const std::string page = replay_page(two_ranks());
  EXPECT_EQ(page.find("a </script> title"), std::string::npos);
  EXPECT_EQ(page.find("{{"), std::string::npos);
}

TEST(Replay, Page_TitleMayNameAPlaceOfTheTemplate) {
  Replay replay = two_ranks();
  replay.title = "{{DATA}}";
  const std::string page = replay_page(replay);
  EXPECT_NE(page.find("<title>{{DATA}}</title>"), std::string::npos);
  EXPECT_NE(page.find("id=\"data\">{\"title\":"), std::string::npos);
}

}  // namespace
}  // namespace cleave::replay_test
