#include "cleave/report/metrics.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave::metrics_test {
namespace {

std::string file_for_test() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = testing::TempDir() + info->name() + "_metrics.jsonl";
  std::filesystem::remove(path);
  return path;
}

std::vector<int64_t> steps_in(const std::string& path) {
  std::vector<int64_t> steps;
  for (const StepMetrics& row : read_metrics(path)) steps.push_back(row.step);
  return steps;
}

void write_steps(const std::string& path, int64_t last) {
  MetricsWriter writer(path);
  for (int64_t step = 1; step <= last; ++step) writer.append({.step = step, .loss = 2.5});
}

TEST(MetricsWriter, OneStep_IsOneObjectWithTheKeysInOrder) {
  const std::string path = file_for_test();
  MetricsWriter writer(path);
  writer.append({.step = 3,
                 .loss = 2.25,
                 .grad_norm = 0.5,
                 .lr = 0.001,
                 .tokens = 6144,
                 .tokens_per_s = 1000.5,
                 .step_ms = 20.5,
                 .comm_ms = 1.5,
                 .peak_rss_bytes = 1 << 20,
                 .mfu = 0.25});
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line,
            "{\"step\":3,\"loss\":2.25,\"grad_norm\":0.5,\"lr\":0.001,\"tokens\":6144,"
            "\"tokens_per_s\":1000.5,\"step_ms\":20.5,\"comm_ms\":1.5,\"peak_rss_bytes\":1048576,"
            "\"mfu\":0.25}");
}

TEST(MetricsWriter, EachAppend_IsInTheFileWhenItReturns) {
  const std::string path = file_for_test();
  MetricsWriter writer(path);
  writer.append({.step = 1});
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1}));
  writer.append({.step = 2});
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2}));
}

TEST(MetricsWriter, ResumedAtAStep_DropsLaterLinesAndAppends) {
  const std::string path = file_for_test();
  write_steps(path, 9);
  MetricsWriter writer(path, 6);
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  writer.append({.step = 7});
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7}));
}

TEST(MetricsWriter, IncompleteLastLine_IsDropped) {
  const std::string path = file_for_test();
  write_steps(path, 2);
  std::ofstream(path, std::ios::app) << "{\"step\":3,\"lo";
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2}));
  MetricsWriter writer(path, 10);
  writer.append({.step = 3});
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3}));
}

// What a power failure may leave of the lines that were not on the disk.
TEST(MetricsWriter, BlankLinesAndZerosAtTheEnd_AreRemovedWithOneWarning) {
  for (const std::string& end : {std::string("\n"), std::string(3, '\0') + "\n\n",
                                 std::string(9, '\0'), std::string(" \r\n{\"step\":3,\"lo")}) {
    const std::string path = file_for_test();
    write_steps(path, 2);
    std::ofstream(path, std::ios::app) << end;
    EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2}));
    testing::internal::CaptureStderr();
    { MetricsWriter(path, 4).append({.step = 5}); }
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "cleave: warning: " + path +
                  " ended in blank lines or zeros, as after a power failure; they were removed, "
                  "and the metrics of the steps after 2 are lost\n");
    EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 5}));
  }
}

// The steps of those lines are repeated.
TEST(MetricsWriter, DamageAfterTheResumedStep_IsRemovedSilently) {
  const std::string path = file_for_test();
  write_steps(path, 2);
  std::ofstream(path, std::ios::app) << std::string(4, '\0') + "}\n{\"step\":5}\n";
  testing::internal::CaptureStderr();
  { MetricsWriter(path, 2).append({.step = 3}); }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3}));
}

TEST(MetricsWriter, BlankLineBetweenOthers_IsAnErrorThatSaysWhatToDo) {
  const std::string path = file_for_test();
  write_steps(path, 2);
  std::ofstream(path, std::ios::app) << std::string(4, '\0') + "\n{\"step\":4}\n";
  try {
    MetricsWriter(path, 4);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFormat);
    const std::string text = error.what();
    EXPECT_NE(text.find(path + ":3: "), std::string::npos) << text;
    EXPECT_NE(text.find("; remove that line: only the metrics of its step are lost"),
              std::string::npos)
        << text;
  }
}

TEST(MetricsWriter, KeptLines_StayByteForByte) {
  const std::string path = file_for_test();
  const std::string line = "{\"step\": 1, \"loss\": 1.50, \"note\": \"by hand\"}\n";
  std::ofstream(path) << line;
  const MetricsWriter writer(path, 1);
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), line);
}

TEST(ReadMetrics, UnknownNumbers_ComeBackAsNaN) {
  const std::string path = file_for_test();
  MetricsWriter writer(path);
  writer.append({.step = 1, .loss = NAN, .lr = 0.5, .eval_loss = 3.5});
  writer.append({.step = 2, .aux_loss = 2.25});
  writer.append({.step = 3, .aux_loss = NAN});  // of a step that overflows fp16
  const StepMetrics row = read_metrics(path).at(0);
  EXPECT_TRUE(std::isnan(row.loss));
  EXPECT_TRUE(std::isnan(row.mfu));
  EXPECT_EQ(row.lr, 0.5);
  EXPECT_EQ(row.eval_loss, 3.5);
  EXPECT_FALSE(row.aux_loss);
  EXPECT_EQ(read_metrics(path).at(1).aux_loss, 2.25);
  EXPECT_FALSE(read_metrics(path).at(2).aux_loss);
}

TEST(ReadMetrics, RewardsOfPreferences_ComeBack) {
  const std::string path = file_for_test();
  MetricsWriter writer(path);
  writer.append({.step = 1, .reward_margin = -0.25, .reward_accuracy = 0.75});
  writer.append({.step = 2});
  const std::vector<StepMetrics> rows = read_metrics(path);
  EXPECT_EQ(rows.at(0).reward_margin, -0.25);
  EXPECT_EQ(rows.at(0).reward_accuracy, 0.75);
  EXPECT_FALSE(rows.at(1).reward_margin);
}

TEST(ReadMetrics, LineWithoutStep_NamesFileAndLine) {
  const std::string path = file_for_test();
  std::ofstream(path) << "{\"step\":1}\n{\"loss\":1}\n";
  try {
    read_metrics(path);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_NE(std::string(error.what()).find("metrics.jsonl:2"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cleave::metrics_test
