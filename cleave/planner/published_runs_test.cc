#include "cleave/planner/published_runs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave::published_runs_test {
namespace {

namespace fs = std::filesystem;

const char* const kHeader =
    "id,kind,source,year,model,params_B,layers,hidden,heads,kv_heads,ffn,vocab,device,devices,tp,"
    "sp,"
    "pp,vp,dp,cp,ep,sharding,micro_batch,global_batch,seq,precision,recompute,step_s,"
    "tokens_per_s_per_device,tflops_per_device,tflops_counts,mem_per_device\n";
const char* const kRow =
    "7,train,paper,2021,gpt,1.7,24,2304,24,,9216,51200,A100-80GB "
    "(Selene),32,1,0,1,1,32,1,1,none,16,"
    "512,2048,fp16,full,3.53,,,,29.5 GiB\n";

/// The rows of a table with this text.
std::vector<PublishedRun> read(const std::string& text) {
  const fs::path path = fs::path(testing::TempDir()) / "published_runs_test.csv";
  std::ofstream(path) << text;
  return read_published_runs(path.string());
}

void expect_refused(const std::string& text, const std::string& part) {
  try {
    read(text);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(PublishedRuns, Row_BecomesARun) {
  const PublishedRun p = read(std::string(kHeader) + kRow).at(0);
  EXPECT_EQ(p.cluster, "selene");
  EXPECT_EQ(p.unsupported, "");
  EXPECT_EQ(p.size.layers, 24);
  EXPECT_EQ(p.size.head_dim, 96);
  EXPECT_EQ(p.run.dp, 32);
  EXPECT_EQ(p.run.micro_batches(), 1);
  EXPECT_EQ(p.run.recompute, Keep::kFull);
  EXPECT_EQ(p.step_s, 3.53);
  EXPECT_EQ(p.memory_bytes, 29.5 * (1 << 30));
}

TEST(PublishedRuns, LayersThatARowDoesNotGive_FollowFromItsParameters) {
  const std::string row = replaced(kRow, "1.7,24,", "1.645,,");
  EXPECT_EQ(read(std::string(kHeader) + row).at(0).size.layers, 24);
}

TEST(PublishedRuns, NoteOfEagerOrTorchCompile_SaysWhoseKernels) {
  const auto compiled = [](const std::string& year, const std::string& note) {
    const std::string header = replaced(kHeader, "mem_per_device", "mem_per_device,notes");
    const std::string row =
        replaced(replaced(kRow, "29.5 GiB", "29.5 GiB," + note), ",2021,", "," + year + ",");
    return read(header + row).at(0).run.kernels;
  };
  EXPECT_EQ(compiled("2024", "eager"), Kernels::kEager);
  EXPECT_EQ(compiled("2024", "torch.compile"), Kernels::kCompiledLayers);
  EXPECT_EQ(compiled("2025", "torch.compile; step 100"), Kernels::kCompiledAll);
  EXPECT_EQ(read(std::string(kHeader) + kRow).at(0).run.kernels, Kernels::kOwn);
}

TEST(PublishedRuns, OutOfMemory_IsNoMemory) {
  const PublishedRun p = read(kHeader + replaced(kRow, "29.5 GiB", "OOM")).at(0);
  EXPECT_TRUE(p.out_of_memory);
  EXPECT_EQ(p.memory_bytes, 0);
}

TEST(PublishedRuns, RowWithoutLayersAndParameters_HasNoPrediction) {
  const PublishedRun p = read(kHeader + replaced(kRow, "1.7,24,", ",,")).at(0);
  EXPECT_NE(p.unsupported.find("layers"), std::string::npos);
}

TEST(PublishedRuns, UnknownShardingOrRecompute_HasNoPrediction) {
  const PublishedRun zero3 = read(kHeader + replaced(kRow, "none,16", "ZeRO-3,16")).at(0);
  EXPECT_EQ(zero3.unsupported, "sharding 'ZeRO-3' is unknown");
  const PublishedRun some = read(kHeader + replaced(kRow, "full,3.53", "some,3.53")).at(0);
  EXPECT_EQ(some.unsupported, "recompute 'some' is unknown");
}

TEST(PublishedRuns, UnknownDevice_HasNoPrediction) {
  const PublishedRun p = read(kHeader + replaced(kRow, "A100-80GB (Selene)", "TPU v4")).at(0);
  EXPECT_NE(p.unsupported.find("TPU v4"), std::string::npos);
}

TEST(PublishedRuns, Mistakes_NameFileLineAndColumn) {
  expect_refused(kHeader + replaced(kRow, "2304", "many"), "published_runs_test.csv:2");
  expect_refused(kHeader + replaced(kRow, "2304", "many"), "hidden is 'many'");
  expect_refused(kHeader + replaced(kRow, "2304", "-1"), "hidden");
  expect_refused(kHeader + replaced(kRow, "2304", "1.5"), "whole number");
  expect_refused(kHeader + replaced(kRow, "2304", "nan"), "hidden is 'nan'");
  expect_refused(kHeader + replaced(kRow, "2304", "1e12"), "up to 1e9");
  expect_refused(kHeader + replaced(kRow, "none,16", "none,-16"), "micro_batch is '-16'");
  expect_refused(kHeader + replaced(kRow, "none,16", "none,4611686018427387904"), "micro_batch");
  expect_refused(kHeader + replaced(kRow, "1.7,24,", "1e14,,"), "params_B");
  expect_refused(replaced(kHeader, "hidden", "width") + kRow, "no column 'hidden'");
  expect_refused(kHeader, "no rows");
}

/// Mean errors of the rows whose source begins with a name.
struct Summary {
  double time = 0, memory = 0;
  int times = 0, memories = 0, fits_wrong = 0;
};

class RealPublishedRuns : public testing::Test {
 protected:
  void SetUp() override {
    const char* data = std::getenv("CLEAVE_DATA");  // NOLINT(concurrency-mt-unsafe)
    if (data == nullptr) GTEST_SKIP() << "CLEAVE_DATA names no folder with test data";
    runs_ = read_published_runs((fs::path(data) / "published_runs" / "runs.csv").string());
  }

  [[nodiscard]] Summary summary(const std::string& source) const {
    Summary out;
    for (const PublishedRun& p : runs_) {
      if (!p.source.starts_with(source) || !p.unsupported.empty()) continue;
      const ClusterCost cost = cluster_cost(cluster_preset(p.cluster), p.size, p.run);
      if (p.step_s > 0) {
        out.time += std::abs(cost.time.total() / p.step_s - 1);
        ++out.times;
      }
      if (p.memory_bytes > 0) {
        out.memory += std::abs(cost.memory.total() / p.memory_bytes - 1);
        ++out.memories;
      }
      if (cost.fits == p.out_of_memory) ++out.fits_wrong;
    }
    out.time /= std::max(1, out.times);
    out.memory /= std::max(1, out.memories);
    return out;
  }

  std::vector<PublishedRun> runs_;
};

TEST_F(RealPublishedRuns, BloomTrials_AreWithin8PercentOfTimeAnd10OfMemory) {
  const Summary s = summary("BigScience");
  EXPECT_GE(s.times, 40);
  EXPECT_LT(s.time, 0.08);
  EXPECT_GE(s.memories, 30);
  EXPECT_LT(s.memory, 0.10);
  EXPECT_EQ(s.fits_wrong, 0);
}

TEST_F(RealPublishedRuns, Megatron2021_IsWithin5Percent) {
  EXPECT_GE(summary("Narayanan").times, 4);
  EXPECT_LT(summary("Narayanan").time, 0.05);
}

TEST_F(RealPublishedRuns, Korthikanti2022_IsWithin4Percent) {
  EXPECT_GE(summary("Korthikanti").times, 3);
  EXPECT_LT(summary("Korthikanti").time, 0.04);
}

TEST_F(RealPublishedRuns, MemoryOfTorchtitan_IsWithin10Percent) {
  EXPECT_GE(summary("torchtitan").memories, 7);
  EXPECT_LT(summary("torchtitan").memory, 0.10);
  EXPECT_LT(summary("torchtitan H200").memory, 0.10);
}

TEST_F(RealPublishedRuns, MultiNodeVTrain_IsWithin10PercentAndRanksTheBestAmongTheFirstThree) {
  EXPECT_GE(summary("vTrain").times, 30);
  EXPECT_LT(summary("vTrain").time, 0.10);
  std::map<std::string, std::vector<std::pair<double, double>>> by_model;  // predicted, measured
  for (const PublishedRun& p : runs_) {
    if (!p.source.starts_with("vTrain")) continue;
    const ClusterCost cost = cluster_cost(cluster_preset(p.cluster), p.size, p.run);
    by_model[p.model].emplace_back(cost.time.total(), p.step_s);
  }
  for (auto& [model, times] : by_model) {
    const auto best =
        *std::min_element(times.begin(), times.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
    int faster = 0;
    for (const auto& time : times) faster += time.first < best.first ? 1 : 0;
    EXPECT_LT(faster, 3) << model;
  }
}

}  // namespace
}  // namespace cleave::published_runs_test
