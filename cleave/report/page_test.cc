#include "cleave/report/page.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/file/file.h"
#include "tests/support/temp_folder.h"

namespace cleave::page_test {
namespace {

using nlohmann::json;
using test::TempFolder;

size_t times(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<StepMetrics> steps(int64_t count) {
  std::vector<StepMetrics> all;
  for (int64_t step = 1; step <= count; ++step) {
    all.push_back({.step = step,
                   .loss = 6 - static_cast<double>(step),
                   .lr = 0.1,
                   .tokens = 100 * step,
                   .tokens_per_s = 1000.0 * static_cast<double>(step),
                   .step_ms = 100,
                   .comm_ms = 25});
  }
  return all;
}

/// The data of the page's charts.
json data_of(const std::string& page) {
  const std::string start = "id=\"data\">";
  const size_t begin = page.find(start) + start.size();
  return json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

ReportRun whole_run() {
  ReportRun run{
      .name = "out/a",
      .record = {.title = "llama-tiny on 2 ranks",
                 .outcome = "finished",
                 .num_steps = 3,
                 .wall_s = 65,
                 .settings = {{"command", "cleave train --out 'a b'"}, {"dtype", "bf16"}},
                 .memory = {{.rank = "rank 0",
                             .bytes = {{"weights", 1 << 20}, {"optimizer", 3 << 20}},
                             .forecast = 5 << 20},
                            {.rank = "rank 1", .bytes = {{"weights", 1 << 20}, {"optimizer", 0}}}},
                 .other_time = {{"saving", 0.2}, {"reading", 0}},
                 .step_time = {{"matrix products", 0.75}, {"collectives", 0}, {"other", 0.25}},
                 .step_forecast = {{"matrix products", 0.5}, {"collectives", 0.125}}},
      .metrics = steps(3),
      .checkpoints = {{.name = "step_00000003", .bytes = 2 << 20}}};
  run.metrics[2].eval_loss = 3.25;
  run.metrics[1].peak_rss_bytes = run.metrics[2].peak_rss_bytes = 7 << 20;
  return run;
}

// Three steps of 100 ms, a quarter of it in collectives, and 200 ms to save: 500 ms.
TEST(ReportPage, OneRun_ShowsAllPartsOnce) {
  const std::string page = report_page({whole_run()});
  for (const char* part :
       {"<title>llama-tiny on 2 ranks</title>",
        "<h1>llama-tiny on 2 ranks</h1>",
        "<p class=\"outcome\">out/a: finished</p>",
        "<dt>training loss</dt><dd>3.0000</dd>",
        "<dt>evaluation loss</dt><dd>3.2500</dd>",
        "<dt>steps</dt><dd>3</dd>",
        "<dt>tokens/s, median</dt><dd>2.00k</dd>",
        "<dt>step time, median</dt><dd>100ms</dd>",
        "<dt>wall time</dt><dd>1m 05s</dd>",
        "<dt>tensor memory, peak of a rank</dt><dd>4.0 MiB</dd>",
        "<dt>resident memory, peak</dt><dd>7.0 MiB</dd>",
        "computing</th><td>225ms</td><td class=\"bar\" style=\"--share:45%\">45.0 %</td>",
        "collectives</th><td>75ms</td><td class=\"bar\" style=\"--share:15%\">15.0 %</td>",
        "saving</th><td>200ms</td><td class=\"bar\" style=\"--share:40%\">40.0 %</td>",
        "matrix products</th><td>750ms</td><td class=\"bar\" style=\"--share:75%\">75.0 %</td>"
        "<td>500ms</td>",
        "other</th><td>250ms</td><td class=\"bar\" style=\"--share:25%\">25.0 %</td><td></td>",
        "total</th><td>1.0s</td><td></td><td>625ms</td>",
        "rank 0</th><td class=\"bar\" style=\"--share:25%\">1.0 MiB</td>"
        "<td class=\"bar\" style=\"--share:75%\">3.0 MiB</td><td>4.0 MiB</td><td>5.0 MiB</td>",
        "step_00000003</th><td>2.0 MiB</td>",
        "command</th><td>cleave train --out 'a b'</td>",
        "dtype</th><td>bf16</td>"}) {
    EXPECT_EQ(times(page, part), 1U) << part;
  }
  EXPECT_EQ(times(page, "forecast</th>"), 2U);  // of time and of memory
  EXPECT_FALSE(contains(page, "MFU"));
  EXPECT_FALSE(contains(page, "reading</th>"));  // took no time
}

// Part of the work on GPUs has no time in the forecast.
TEST(ReportPage, ForecastOfARunOnGpus_IsCalledAtLeast) {
  ReportRun run = whole_run();
  run.record.settings.emplace_back("device", "cuda");
  const std::string page = report_page({run});
  EXPECT_EQ(times(page, "at least</th>"), 1U);
  EXPECT_EQ(times(page, "forecast</th>"), 1U);  // of memory
  EXPECT_TRUE(contains(page, "on GPUs only products, attention and messages have a time."));
  run.record.settings.back().second = "cpu";
  EXPECT_FALSE(contains(report_page({run}), "at least</th>"));
  EXPECT_EQ(times(report_page({run}), "forecast</th>"), 2U);
}

TEST(ReportPage, Data_AreTheStepsWithGaps) {
  const json run = data_of(report_page({whole_run()})).at("runs").at(0);
  EXPECT_EQ(run["name"], "out/a");
  EXPECT_EQ(run["train"]["last"], json({1, 2, 3}));
  EXPECT_FALSE(run["train"].contains("first"));
  EXPECT_EQ(run["train"]["loss"], json({{"mean", {5.0, 4.0, 3.0}}}));
  EXPECT_EQ(run["train"]["grad_norm"]["mean"], json({nullptr, nullptr, nullptr}));
  EXPECT_EQ(run["train"]["peak_rss_bytes"]["mean"], json({nullptr, 7 << 20, 7 << 20}));
  EXPECT_EQ(run["eval"]["last"], json::array({3}));
  EXPECT_EQ(run["eval"]["eval_loss"]["mean"], json::array({3.25}));
}

// Oracle: the values of the steps in each bucket, with seven digits.
TEST(ReportPage, TwentyThousandSteps_KeepExtremesInASmallPage) {
  ReportRun run{.name = "a"};
  for (int64_t step = 1; step <= 20000; ++step) {
    const auto x = static_cast<double>(step);
    run.metrics.push_back({.step = step,
                           .loss = 10 / x + std::sin(x),
                           .grad_norm = 1 + 0.123456789 * std::cos(x),
                           .lr = 1e-4 / x,
                           .tokens = step,
                           .tokens_per_s = 1e5 + 1e3 * std::sin(3 * x),
                           .step_ms = 30 + std::cos(7 * x),
                           .comm_ms = 3 + std::sin(9 * x),
                           .peak_rss_bytes = 1234567890 + step,
                           .mfu = 0.5});
    if (step % 100 == 0) run.metrics.back().eval_loss = 1 / x;
  }
  run.metrics[12344].loss = 99;
  const std::string page = report_page({run});
  EXPECT_LT(page.size(), 600U << 10);
  const json train = data_of(page)["runs"][0]["train"];
  const size_t count = train["last"].size();
  ASSERT_EQ(count, 800U);
  double highest = 0;
  int64_t next = 1;
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(train["first"][i], next);
    next = train["last"][i].get<int64_t>() + 1;
    double low = INFINITY, high = -INFINITY, sum = 0;
    for (int64_t step = train["first"][i]; step < next; ++step) {
      const double loss = run.metrics[static_cast<size_t>(step - 1)].loss;
      low = std::min(low, loss);
      high = std::max(high, loss);
      sum += loss;
    }
    const double mean = sum / static_cast<double>(next - train["first"][i].get<int64_t>());
    for (const auto& [key, want] : {std::pair{"mean", mean}, {"low", low}, {"high", high}}) {
      EXPECT_NEAR(train["loss"][key][i].get<double>(), want, 5e-7 * std::max(std::abs(want), 1.0));
    }
    highest = std::max(highest, train["loss"]["high"][i].get<double>());
  }
  EXPECT_EQ(next, 20001);
  EXPECT_EQ(highest, 99);
}

TEST(ReportPage, HostileTexts_AreEscapedEverywhere) {
  const std::string evil = "</script><script>alert(1)</script><!-- & \" \xff {{DATA}}";
  ReportRun run = whole_run();
  run.name = run.record.title = run.record.outcome = evil;
  run.record.settings = {{evil, evil}};
  run.record.memory[0].rank = evil;
  run.record.memory[0].bytes[0].first = evil;
  run.record.other_time[0].first = evil;
  run.checkpoints[0].name = evil;
  for (const auto& runs : {std::vector<ReportRun>{run}, std::vector<ReportRun>{run, run}}) {
    const std::string page = report_page(runs);
    EXPECT_FALSE(contains(page, "alert(1)</script>"));
    EXPECT_FALSE(contains(page, "<!-- &"));
    EXPECT_FALSE(contains(page, "\xff"));
    EXPECT_EQ(times(page, "<script"), 2U);  // the data and the program
    EXPECT_EQ(times(page, "</script>"), 2U);
    EXPECT_EQ(data_of(page)["runs"][0]["name"],
              "</script><script>alert(1)</script><!-- & \" \xEF\xBF\xBD {{DATA}}");
  }
}

TEST(ReportPage, Page_LoadsNothing) {
  const std::string page = report_page({whole_run()});
  for (const char* part : {"src=", "href=", "@import", "url(", "https:", "fetch("}) {
    EXPECT_FALSE(contains(page, part)) << part;
  }
  EXPECT_TRUE(contains(page, "default-src 'none'"));
}

TEST(ReportPage, RunInProgress_SaysHowFarItIs) {
  ReportRun run{.name = "a", .record = {.title = "t", .num_steps = 9}, .written = "noon"};
  EXPECT_TRUE(contains(report_page({run}), "not ended: step 0 of 9, written at noon"));
  EXPECT_FALSE(contains(report_page({run}), "nan"));
  run.metrics = steps(4);
  const std::string page = report_page({run});
  EXPECT_TRUE(contains(page, "not ended: step 4 of 9, written at noon"));
  EXPECT_TRUE(contains(page, "<dt>steps</dt><dd>4 of 9</dd>"));
}

// The times are those since the last start, and say so: steps and tokens count from the first one.
TEST(ReportPage, ResumedRun_LeavesEarlierStepsOutOfTheTime) {
  ReportRun run = whole_run();
  EXPECT_FALSE(contains(report_page({run}), "from step"));
  run.record.first_step = 3;
  const std::string page = report_page({run});
  EXPECT_TRUE(contains(page, "<dt>steps</dt><dd>3</dd>"));
  EXPECT_TRUE(contains(page, "<dt>wall time from step 3 on</dt><dd>1m 05s</dd>"));
  EXPECT_FALSE(contains(page, "<dt>wall time</dt>"));
  EXPECT_TRUE(contains(page, "<th scope=\"col\">the run from step 3 on</th>"));
  EXPECT_TRUE(contains(page, "computing</th><td>75ms</td>"));
  EXPECT_EQ(times(report_page({whole_run(), run}),
                  "wall time from step 3 on</th><td></td><td>1m 05s</td>"),
            1U);
}

TEST(ReportPage, SeveralRuns_CompareNumbersAndTheSettingsThatDiffer) {
  ReportRun a = whole_run();
  ReportRun b = whole_run();
  b.name = "out/b";
  b.metrics = steps(2);
  b.record.settings = {{"command", "cleave train --out 'a b'"}, {"dtype", "fp32"}, {"tp", "2"}};
  const std::string page = report_page({a, b});
  EXPECT_TRUE(contains(page, "<h1>2 runs compared</h1>"));
  EXPECT_TRUE(contains(page, "<th scope=\"col\">out/a</th><th scope=\"col\">out/b</th>"));
  EXPECT_TRUE(contains(page, "training loss</th><td>3.0000</td><td>4.0000</td>"));
  EXPECT_TRUE(contains(page, "evaluation loss</th><td>3.2500</td><td></td>"));
  EXPECT_TRUE(contains(page, "wall time</th><td>1m 05s</td><td>1m 05s</td>"));
  EXPECT_TRUE(contains(page, "dtype</th><td>bf16</td><td>fp32</td>"));
  EXPECT_TRUE(contains(page, "tp</th><td></td><td>2</td>"));
  EXPECT_FALSE(contains(page, "command</th>")) << "the same in both";
  EXPECT_EQ(data_of(page)["runs"][1]["train"]["loss"]["mean"], json({5.0, 4.0}));
}

TEST(WriteReport, RunFolder_IsReadWithItsFinishedCheckpoints) {
  const TempFolder folder;
  write_record(folder.path(), {.title = "t", .outcome = "finished", .num_steps = 2});
  MetricsWriter writer(folder / "metrics.jsonl");
  writer.append({.step = 1, .loss = 2.5});
  for (const char* name : {"step_00000001", "step_00000002.partial", "tokens"}) {
    std::filesystem::create_directory(folder / name);
    std::ofstream(folder / (std::string(name) + "/file")) << "12345";
  }
  std::ofstream(folder / "page.html") << "before";
  write_report({folder.path().string() + "/"}, folder / "page.html");
  const std::string page = read_file(folder / "page.html");
  EXPECT_TRUE(contains(page, "step_00000001</th><td>5 bytes</td>"));
  EXPECT_FALSE(contains(page, "partial"));
  EXPECT_EQ(data_of(page)["runs"][0]["name"], folder.path().string());
  EXPECT_EQ(data_of(page)["runs"][0]["train"]["loss"]["mean"], json::array({2.5}));
  EXPECT_FALSE(contains(read_run(folder.path()).written, "1970")) << "the time of the last step";
}

TEST(WriteReport, SeveralRuns_AreNamedWithoutTheFolderOfAll) {
  const TempFolder folder;
  const auto names = [&](const std::vector<std::string>& runs) {
    std::vector<std::string> paths;
    for (const std::string& run : runs) {
      paths.push_back(folder / run);
      std::filesystem::create_directories(paths.back());
      write_record(paths.back(), {});
      const MetricsWriter empty(paths.back() + "/metrics.jsonl");
    }
    write_report(paths, folder / "page.html");
    std::vector<std::string> found;
    const json data = data_of(read_file(folder / "page.html"));
    for (const json& run : data["runs"]) found.push_back(run["name"]);
    return found;
  };
  EXPECT_EQ(names({"x/ab", "x/ac"}), (std::vector<std::string>{"ab", "ac"}));
  EXPECT_EQ(names({"x/ab/1", "x/ac/1"}), (std::vector<std::string>{"ab/1", "ac/1"}));
  EXPECT_EQ(names({"x", "x/ab"}), (std::vector<std::string>{"x", "x/ab"}));
  EXPECT_EQ(names({"x", "x"}), (std::vector<std::string>{"x", "x"}));
}

TEST(WriteReport, BrokenMetrics_NameTheLineAndLeaveTheOldPage) {
  const TempFolder folder;
  write_record(folder.path(), {});
  std::ofstream(folder / "page.html") << "before";
  for (const char* text : {"{\"step\":1}\nnonsense\n", "{\"step\":1}\n{\"step\":1}\n",
                           "{\"step\":1}\n{\"step\":2,\"loss\":\"low\"}\n"}) {
    std::ofstream(folder / "metrics.jsonl") << text;
    try {
      write_report({folder.path().string()}, folder / "page.html");
      FAIL() << "no error: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kFormat);
      EXPECT_TRUE(contains(error.what(), "metrics.jsonl:2")) << error.what();
    }
    EXPECT_EQ(read_file(folder / "page.html"), "before");
  }
}

}  // namespace
}  // namespace cleave::page_test
