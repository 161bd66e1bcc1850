#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/file/file.h"
#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {

/// Training runs of adapters of a small Llama.
class LoraRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string text = read_file(std::string(CLEAVE_SOURCE_DIR) + "/LICENSE");
    std::ofstream(folder_ / "text") << text.substr(0, 2000);
    base_ = test::golden_folder("llama-gqa-llama3rope");
  }

  TrainOptions options(const std::string& out) {
    TrainOptions o;
    o.model = base_;
    std::ofstream rows(folder_ / "rows.jsonl");
    for (int row = 0; row < 16; ++row) {
      std::vector<int> ids;
      for (int i = 0; i < 12; ++i) ids.push_back(4 + (row * 7 + i * i) % 60);
      rows << nlohmann::json{{"input_ids", ids}}.dump() << '\n';
    }
    o.data = {folder_ / "rows.jsonl"};
    o.out = folder_ / out;
    o.seq_len = 16;
    o.batch_size = 4;
    o.steps = 6;
    o.lr = 1e-2;
    o.lora = 4;
    o.lora_targets = {"q_proj,v_proj", "down_proj"};
    o.gemm = "mkl";
    o.threads_per_rank = 1;
    return o;
  }

  static std::vector<double> losses(const TrainOptions& options) {
    cleave_train(options);
    std::vector<double> out;
    for (const StepMetrics& m : read_metrics(options.out + "/metrics.jsonl")) out.push_back(m.loss);
    return out;
  }

  /// Trains and compares each step's loss with one rank's.
  static void expect_losses(const TrainOptions& o, const std::vector<double>& want) {
    const std::vector<double> got = losses(o);
    ASSERT_EQ(got.size(), want.size()) << o.out;
    // fp32 rounding of sums in another order, which Adam enlarges over six steps.
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 2e-4 * want[i]) << o.out << i;
    }
  }

  /// Code and message of the error.
  static std::string error_of(const TrainOptions& options) {
    try {
      cleave_train(options);
    } catch (const Error& error) {
      return str(static_cast<int>(error.code()), ' ', error.what());
    }
    return "";
  }

  TempFolder folder_;
  std::string base_;
};

}  // namespace cleave::test
