#include "cleave/base/progress.h"

#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/captured_stdout.h"

namespace cleave::progress_test {
namespace {

using test::Captured;

// The text after the last redraw.
std::string last_drawn(const std::string& text) {
  const size_t at = text.rfind("\x1b[K");
  return at == std::string::npos ? text : text.substr(at + 3);
}

size_t times(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(DurationText, EachRange_TwoUnitsAtMost) {
  EXPECT_EQ(duration_text(0), "0.0s");
  EXPECT_EQ(duration_text(0.0014), "1.4ms");
  EXPECT_EQ(duration_text(0.0421), "42ms");
  EXPECT_EQ(duration_text(0.0949), "95ms");
  EXPECT_EQ(duration_text(0.1), "100ms");
  EXPECT_EQ(duration_text(0.9994), "999ms");
  EXPECT_EQ(duration_text(0.9996), "1.0s");
  EXPECT_EQ(duration_text(9.94), "9.9s");
  EXPECT_EQ(duration_text(9.96), "10s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(59.6), "1m 00s");
  EXPECT_EQ(duration_text(65), "1m 05s");
  EXPECT_EQ(duration_text(2 * 3600 + 3 * 60 + 4), "2h 03m");
  EXPECT_EQ(duration_text(-1), "0.0s");
}

TEST(CountText, EachRange_ThreeDigits) {
  EXPECT_EQ(count_text(512), "512");
  EXPECT_EQ(count_text(999.4), "999");
  EXPECT_EQ(count_text(999.6), "1.00k");
  EXPECT_EQ(count_text(12345), "12.3k");
  EXPECT_EQ(count_text(4.56e6), "4.56M");
  EXPECT_EQ(count_text(8.03e9), "8.03B");
  EXPECT_EQ(count_text(7e12), "7.00T");
  EXPECT_EQ(count_text(7e15), "7000T");
}

TEST(Progress, OnAPipe_OneLineEveryTenSecondsAndOneAtTheEnd) {
  Captured out;
  double now = 100;
  Progress progress({.total = 40, .clock = [&] { return now; }});
  for (int step = 1; step <= 40; ++step) {
    now += 0.5;
    progress.update(step, {.loss = 2.5, .tokens_per_s = 12345});
  }
  progress.finish();
  progress.finish();
  EXPECT_EQ(out.take(),
            "step 20/40  loss 2.5000  12.3k tokens/s  10s left\n"
            "step 40/40  loss 2.5000  12.3k tokens/s  took 20s\n");
}

TEST(Progress, EvalLoss_StaysShownUntilTheNextEvaluation) {
  Captured out;
  double now = 0;
  Progress progress({.total = 4, .clock = [&] { return now; }});
  const double none = std::numeric_limits<double>::quiet_NaN();
  for (const double eval : {none, 3.25, none, 3.0}) {
    now += 10;
    const auto step = static_cast<int64_t>(now / 10);
    progress.update(step, {.loss = 2, .eval_loss = eval, .eval_accuracy = eval / 4});
  }
  progress.finish();
  EXPECT_EQ(out.take(),
            "step 1/4  loss 2.0000  30s left\n"
            "step 2/4  loss 2.0000  eval 3.2500  accuracy 0.8125  20s left\n"
            "step 3/4  loss 2.0000  eval 3.2500  accuracy 0.8125  10s left\n"
            "step 4/4  loss 2.0000  eval 3.0000  accuracy 0.7500  took 40s\n");
}

TEST(Progress, RewardsOfPreferences_AreShown) {
  Captured out;
  double now = 0;
  Progress progress({.total = 2, .clock = [&] { return now; }});
  now = 10;
  progress.update(1, {.loss = 0.5, .reward_margin = -0.25, .reward_accuracy = 0.75});
  EXPECT_EQ(out.take(),
            "step 1/2  loss 0.5000  reward margin -0.2500  reward accuracy 0.7500  10s left\n");
}

TEST(Progress, Resumed_TimeLeftCountsOnlyTheStepsOfThisRun) {
  Captured out;
  double now = 0;
  Progress progress({.total = 100, .done = 90, .clock = [&] { return now; }});
  now = 30;
  progress.update(95);
  EXPECT_EQ(out.take(), "step 95/100  30s left\n");
}

TEST(Progress, OnATerminal_RedrawsTenTimesASecondAndLeavesOnePlainLine) {
  setenv("TERM", "xterm", 1);
  Captured out(100);
  double now = 0;
  {
    Progress progress({.total = 1000, .clock = [&] { return now; }});
    for (int step = 1; step <= 1000; ++step) {
      now += 0.001;
      progress.update(step, {.loss = 1});
    }
    progress.finish();
  }
  const std::string text = out.take();
  // Ten redraws in this one second, and one that clears the line.
  EXPECT_LE(times(text, "\x1b[K"), 12U);
  EXPECT_GE(times(text, "\x1b[K"), 9U);
  EXPECT_EQ(last_drawn(text), "step 1000/1000  loss 1.0000  took 1.0s\r\n");
}

TEST(Progress, NarrowTerminal_LineEndsBeforeTheLastColumnWithAWholeFigure) {
  setenv("TERM", "xterm", 1);
  const std::map<int, std::string> narrow{
      {40, "step 500/1000 50%  loss 1.2500"}, {20, "step 500/1000 50%"}, {5, "step"}};
  for (const int columns : {200, 80, 60, 40, 20, 5}) {
    Captured out(columns);
    double now = 0;
    Progress progress({.total = 1000, .clock = [&] { return now; }});
    now = 1;
    progress.update(500, {.loss = 1.25, .tokens_per_s = 1e6});
    const std::string line = last_drawn(out.take());
    EXPECT_LT(line.size(), static_cast<size_t>(columns)) << line;
    if (narrow.contains(columns)) {
      EXPECT_EQ(line, narrow.at(columns));
    }
    EXPECT_EQ(line.find("[###############...............] 50%  loss 1.2500") != std::string::npos,
              columns == 200)
        << line;
  }
}

// A terminal that cannot move its cursor, and the terminals that mpirun gives its ranks.
TEST(Progress, OnADumbTerminalOrUnderALauncher_LinesArePlain) {
  for (const char* term : {"dumb", "", "xterm"}) {
    setenv("TERM", term, 1);
    Captured out(100);
    double now = 0;
    Progress progress({.total = 4, .may_be_live = std::string_view(term) != "xterm", .clock = [&] {
                         return now;
                       }});
    for (int step = 1; step <= 4; ++step) {
      now += 10;
      progress.update(step);
    }
    progress.finish();
    EXPECT_EQ(out.take(),
              "step 1/4  30s left\r\nstep 2/4  20s left\r\nstep 3/4  10s left\r\n"
              "step 4/4  took 40s\r\n")
        << term;
  }
}

}  // namespace
}  // namespace cleave::progress_test
