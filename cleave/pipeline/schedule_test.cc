#include "cleave/pipeline/schedule.h"

#include <gmock/gmock.h>

#include "tests/support/thrown.h"

namespace cleave::schedule_test {
namespace {

using Kind = Action::Kind;
using test::thrown_by;

constexpr std::array kKinds{ScheduleKind::kGpipe, ScheduleKind::k1F1B, ScheduleKind::kInterleaved,
                            ScheduleKind::kZeroBubble};

Schedule schedule_of(ScheduleKind kind, int num_ranks, int stages_per_rank, int num_micro_batches) {
  return make_schedule({kind, num_ranks, stages_per_rank, num_micro_batches});
}

/// "F0 F1 B0": with several stages a rank "F0.2" is micro-batch 0 on stage 2.
std::string text_of(const Schedule& schedule, size_t rank) {
  std::string text;
  for (const Action& a : schedule.ranks[rank]) {
    text += str(text.empty() ? "" : " ", "FBW"[static_cast<size_t>(a.kind)], a.micro_batch);
    if (schedule.shape.stages_per_rank > 1) text += str(".", a.stage);
  }
  return text;
}

double idle(const Schedule& schedule) {
  return timeline_of(schedule, unit_cost(schedule)).idle_share();
}

TEST(Schedule, OneForwardOneBackward_IsTheReferenceOrder) {
  const Schedule s = schedule_of(ScheduleKind::k1F1B, 4, 1, 6);
  EXPECT_EQ(text_of(s, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5");
  EXPECT_EQ(text_of(s, 1), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
  EXPECT_EQ(text_of(s, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5");
}

TEST(Schedule, FewerMicroBatchesThanStages_WarmsUpWithAllOfThem) {
  const Schedule s = schedule_of(ScheduleKind::k1F1B, 4, 1, 2);
  EXPECT_EQ(text_of(s, 0), "F0 F1 B0 B1");
  EXPECT_EQ(text_of(s, 2), "F0 F1 B0 B1");
  EXPECT_EQ(text_of(s, 3), "F0 B0 F1 B1");
}

// Step k of the forwards: stage (k % SV) / S of the rank's, micro-batch S (k / SV) + k % S.
TEST(Schedule, Interleaved_FollowsTheFormulaOfItsSteps) {
  const int S = 4, V = 2, M = 8;
  const Schedule s = schedule_of(ScheduleKind::kInterleaved, S, V, M);
  for (int rank = 0; rank < S; ++rank) {
    std::vector<Action> forwards, backwards;
    for (int k = 0; k < M * V; ++k) {
      const int chunk = k % (S * V) / S, m = S * (k / (S * V)) + k % S;
      forwards.push_back({Kind::kForward, chunk * S + rank, m});
      backwards.push_back({Kind::kBackward, (V - 1 - chunk) * S + rank, m});
    }
    const auto warm_up = static_cast<size_t>(std::min((S - rank - 1) * 2 + (V - 1) * S, M * V));
    std::vector<Action> want(forwards.begin(), forwards.begin() + static_cast<long>(warm_up));
    for (size_t i = 0; i < backwards.size(); ++i) {
      if (warm_up + i < forwards.size()) want.push_back(forwards[warm_up + i]);
      want.push_back(backwards[i]);
    }
    EXPECT_EQ(s.ranks[static_cast<size_t>(rank)], want) << rank;
  }
}

TEST(Schedule, InterleavedWithAsManyMicroBatchesAsRanks_DoesAllForwardsFirst) {
  const Schedule s = schedule_of(ScheduleKind::kInterleaved, 2, 2, 2);
  EXPECT_EQ(text_of(s, 0), "F0.0 F1.0 F0.2 F1.2 B0.2 B1.2 B0.0 B1.0");
  EXPECT_EQ(text_of(s, 1), "F0.1 F1.1 F0.3 F1.3 B0.3 B1.3 B0.1 B1.1");
}

TEST(Schedule, InterleavedWithMicroBatchesThatDoNotDivide_LeavesOutThoseOfTheNextMultiple) {
  const Schedule s = schedule_of(ScheduleKind::kInterleaved, 2, 2, 3);
  EXPECT_EQ(text_of(s, 1), "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 B1.1 F2.3 B2.3 B2.1");
}

// make_schedule checks its result: no action is missing or done twice, and there is no deadlock.
TEST(Schedule, AnySize_RunsToItsEnd) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int stages = 1; stages <= 4; ++stages) {
      for (int micro_batches = 1; micro_batches <= 20; ++micro_batches) {
        for (const ScheduleKind kind : kKinds) {
          if (kind == ScheduleKind::k1F1B && stages > 1) continue;
          EXPECT_NO_THROW(schedule_of(kind, ranks, stages, micro_batches))
              << name(kind) << " S=" << ranks << " V=" << stages << " M=" << micro_batches;
        }
        EXPECT_NO_THROW(make_forward_schedule({ScheduleKind::k1F1B, ranks, stages, micro_batches}));
      }
    }
  }
}

// Idle time over busy time, forward 1 and backward 2: (S-1)/M in gpipe and 1f1b, (S-1)/(MV)
// interleaved. Deferring weights leaves (S-1)(F+B-W) = (S-1) of the 3(S-1) units.
TEST(Schedule, IdleTime_IsTheClosedForm) {
  const auto ratio = [](const Schedule& s) { return idle(s) / (1 - idle(s)); };
  for (const int S : {1, 2, 3, 4, 8}) {
    for (const int M : {S, 2 * S, 4 * S}) {
      const double want = (S - 1.0) / M;
      EXPECT_NEAR(ratio(schedule_of(ScheduleKind::kGpipe, S, 1, M)), want, 1e-12);
      EXPECT_NEAR(ratio(schedule_of(ScheduleKind::k1F1B, S, 1, M)), want, 1e-12);
      EXPECT_NEAR(ratio(schedule_of(ScheduleKind::kZeroBubble, S, 1, M)), want / 3, 1e-12)
          << "S=" << S << " M=" << M;
      for (const int V : {2, 3}) {
        EXPECT_NEAR(ratio(schedule_of(ScheduleKind::kInterleaved, S, V, M)), want / V, 1e-12)
            << "S=" << S << " V=" << V << " M=" << M;
      }
    }
  }
}

TEST(Schedule, ZeroBubble_WaitsLessThanTheOrderItIsMadeFrom) {
  for (int V = 1; V <= 3; ++V) {
    for (int M = 1; M <= 12; ++M) {
      const Schedule zero = schedule_of(ScheduleKind::kZeroBubble, 4, V, M);
      const Schedule whole = schedule_of(ScheduleKind::kInterleaved, 4, V, M);
      EXPECT_LT(idle(zero), idle(whole)) << "V=" << V << " M=" << M;
    }
  }
}

TEST(Schedule, Activations_AreThoseOfSoManyMicroBatches) {
  const int S = 4, M = 9;
  const Schedule gpipe = schedule_of(ScheduleKind::kGpipe, S, 1, M);
  const Schedule one = schedule_of(ScheduleKind::k1F1B, S, 1, M);
  const Schedule zero = schedule_of(ScheduleKind::kZeroBubble, S, 1, M);
  for (int rank = 0; rank < S; ++rank) {
    EXPECT_EQ(peak_live(gpipe, rank), M);
    EXPECT_EQ(peak_live(one, rank), S - rank);
    EXPECT_LE(peak_live(zero, rank), S);
  }
}

TEST(Schedule, Evaluation_WalksEveryStageOfARank) {
  const Schedule s = make_forward_schedule({ScheduleKind::kInterleaved, 2, 2, 3});
  EXPECT_EQ(text_of(s, 1), "F0.1 F1.1 F0.3 F1.3 F2.1 F2.3");
}

TEST(Schedule, WrongSizes_AreRefused) {
  EXPECT_EQ(thrown_by([] { schedule_of(ScheduleKind::k1F1B, 2, 2, 4); }).code(), Code::kUsage);
  EXPECT_EQ(thrown_by([] { schedule_of(ScheduleKind::kGpipe, 2, 1, 0); }).code(), Code::kUsage);
  EXPECT_THAT(thrown_by([] { schedule_from_name("1b1f"); }).what(),
              testing::HasSubstr("'1b1f' is unknown; choose gpipe, 1f1b, interleaved"));
  for (const ScheduleKind kind : kKinds) {
    EXPECT_EQ(schedule_from_name(std::string(name(kind))), kind);
  }
}

TEST(Schedule, RanksThatWaitForEachOther_AreNamed) {
  Schedule s = schedule_of(ScheduleKind::k1F1B, 2, 1, 2);
  std::swap(s.ranks[0][1], s.ranks[0][2]);  // rank 0 awaits B0 before it sends F1
  std::swap(s.ranks[1][1], s.ranks[1][2]);  // rank 1 awaits F1 before it sends B0
  const Error error = thrown_by([&] { check_schedule(s); });
  EXPECT_EQ(error.code(), Code::kBug);
  EXPECT_THAT(error.what(), testing::HasSubstr("rank 0 before the backward of micro-batch 0 on "
                                               "stage 0, rank 1 before the forward of "
                                               "micro-batch 1 on stage 1"));
}

TEST(Schedule, ActionLeftOutOrDoneTwice_IsFound) {
  Schedule lacks = schedule_of(ScheduleKind::k1F1B, 2, 1, 2);
  lacks.ranks[0].pop_back();
  EXPECT_THAT(thrown_by([&] { check_schedule(lacks); }).what(), testing::HasSubstr("has 3 of 4"));
  Schedule twice = schedule_of(ScheduleKind::k1F1B, 2, 1, 2);
  twice.ranks[1].push_back(twice.ranks[1].front());
  EXPECT_THAT(thrown_by([&] { check_schedule(twice); }).what(), testing::HasSubstr("done twice"));
  Schedule strange = schedule_of(ScheduleKind::k1F1B, 2, 1, 2);
  std::swap(strange.ranks[0], strange.ranks[1]);
  EXPECT_EQ(thrown_by([&] { check_schedule(strange); }).code(), Code::kBug);
}

TEST(Schedule, Drawing_HasEveryActionAndTheIdleShare) {
  const std::string svg = draw_schedule(schedule_of(ScheduleKind::kZeroBubble, 4, 1, 8));
  size_t num_cells = 0;
  for (size_t at = svg.find("<rect class="); at != std::string::npos;
       at = svg.find("<rect class=", at + 1)) {
    ++num_cells;
  }
  EXPECT_EQ(num_cells, 4U * 8 * 3);
  // 3 of 27 units: (S-1) / (3M + S-1).
  EXPECT_THAT(svg, testing::HasSubstr("zero-bubble, 4 ranks, 8 micro-batches: 11.1% idle"));
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace cleave::schedule_test
