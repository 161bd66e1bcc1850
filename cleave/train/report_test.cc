#include "cleave/train/report.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/file/file.h"
#include "cleave/train/chart.h"

namespace cleave {
namespace {

size_t times(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<StepMetrics> three_steps() {
  return {{.step = 1,
           .loss = 5,
           .lr = 0.1,
           .tokens = 100,
           .tokens_per_s = 1000,
           .step_ms = 100,
           .comm_ms = 25},
          {.step = 2,
           .loss = 4,
           .lr = 0.2,
           .tokens = 200,
           .tokens_per_s = 3000,
           .step_ms = 100,
           .comm_ms = 25},
          {.step = 3,
           .loss = 3,
           .lr = 0.3,
           .tokens = 300,
           .tokens_per_s = 2000,
           .step_ms = 100,
           .comm_ms = 25,
           .eval_loss = 3.25}};
}

TEST(ShortNumber, EachSize_FewCharacters) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(3e-4), "3e-4");
  EXPECT_EQ(short_number(1e-3), "0.001");
  EXPECT_EQ(short_number(2.25), "2.25");
  EXPECT_EQ(short_number(1500), "1500");
  EXPECT_EQ(short_number(12500), "12.5k");
  EXPECT_EQ(short_number(3.2e6), "3.2M");
  EXPECT_EQ(short_number(-4e9), "-4G");
}

TEST(Thinned, ManyValues_ColumnsAreMeansWithoutNaN) {
  const Series series{.x = {1, 2, 3, 4, 5, 6}, .y = {1, 3, NAN, 5, NAN, NAN}};
  const Series few = thinned(series, 3);
  EXPECT_EQ(few.x, (std::vector<double>{1.5, 3.5, 5.5}));
  EXPECT_EQ(few.y[0], 2);
  EXPECT_EQ(few.y[1], 5);
  EXPECT_TRUE(std::isnan(few.y[2]));
}

TEST(Smoothed, StraightLine_StaysWhereItIs) {
  const std::vector<double> line = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(smoothed(line, 2), line);
}

TEST(Smoothed, OneSpike_IsSpreadOverItsNeighbours) {
  EXPECT_EQ(smoothed({0, 0, 3, 0, 0}, 1), (std::vector<double>{0, 1, 1, 1, 0}));
}

// The corners of the drawing are those of chart.cc: x from 52 to 626, y from 12 to 226.
TEST(ChartSvg, TwoPoints_AreDrawnAtTheCorners) {
  const std::string svg =
      chart_svg({.title = "loss", .series = {{.name = "train", .x = {1, 11}, .y = {0, 10}}}});
  EXPECT_TRUE(contains(svg, "d=\"M52.0 226.0L626.0 12.0\"")) << svg;
}

TEST(ChartSvg, ValuesThatDifferOnlyByRounding_HaveAFewGridLines) {
  for (const double base : {1.0, 1e15, 1e-300}) {
    const double next = std::nextafter(base, 2 * base);
    const std::string svg =
        chart_svg({.title = "loss", .series = {{.name = "t", .x = {1, 2}, .y = {base, next}}}});
    EXPECT_GE(times(svg, "<line"), 2U);
    EXPECT_LE(times(svg, "<line"), 12U);
  }
}

TEST(ChartSvg, NaNBetweenValues_BreaksTheCurve) {
  const std::string svg = chart_svg(
      {.title = "loss", .series = {{.name = "train", .x = {1, 2, 3, 4}, .y = {1, 2, NAN, 3}}}});
  EXPECT_EQ(times(svg.substr(svg.find("d=\"")), "M"), 2U);
}

TEST(ReportHtml, AllParts_AreOnThePageOnce) {
  ReportData data{.title = "llama-tiny on 2 ranks",
                  .outcome = "finished",
                  .command = "cleave train --out 'a b'",
                  .wall_s = 65,
                  .metrics = three_steps(),
                  .model = {{"hidden size", "256"}},
                  .machine = {{"CPU", "a fast one"}},
                  .layout = {{"rank", "tp"}, {"0", "0"}, {"1", "1"}},
                  .memory = {{"rank 0", {{"parameters", 1 << 20}, {"optimizer", 2 << 20}}}},
                  .other_time = {{"saving", 0.2}},
                  .step_time = {{"matrix products", 0.75}, {"other", 0.25}},
                  .checkpoints = {{3, "out/step_00000003", 1 << 20}},
                  .sample_prompt = "if (a < b",
                  .sample_text = " && c) {"};
  const std::string html = report_html(data);
  for (const char* part :
       {"<h1>llama-tiny on 2 ranks</h1>", "cleave train --out 'a b'", "<b>3.0000</b>", "1m 05s",
        "<b>3.2500</b>", "2.00k", "hidden size", "a fast one", "<td>out/step_00000003</td>",
        "<b>if (a &lt; b</b> &amp;&amp; c) {", "computing 0.2s (45.0 %)",
        "communicating 75ms (15.0 %)", "saving 0.2s (40.0 %)", "matrix products 0.8s (75.0 %)",
        "<span>3.0 MiB</span>"}) {
    EXPECT_EQ(times(html, part), 1U) << part;
  }
  EXPECT_EQ(times(html, "<svg"), 3U);  // there is no gradient norm
}

TEST(ReportHtml, Page_IsSelfContained) {
  const std::string html = report_html({.title = "t", .metrics = three_steps()});
  for (const char* part : {"http:", "https:", "<script", "<link", "@import", "url("}) {
    EXPECT_FALSE(contains(html, part)) << part;
  }
}

TEST(ReportHtml, NoSteps_StillAPage) {
  const std::string html = report_html({.title = "empty <run>"});
  EXPECT_TRUE(contains(html, "empty &lt;run&gt;"));
  EXPECT_FALSE(contains(html, "nan"));
}

TEST(WriteReport, ExistingFile_IsReplaced) {
  const std::string path = testing::TempDir() + "report_test.html";
  write_report(path, {.title = "first"});
  write_report(path, {.title = "second"});
  EXPECT_EQ(read_file(path), report_html({.title = "second"}));
}

}  // namespace
}  // namespace cleave
