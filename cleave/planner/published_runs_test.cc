#include "cleave/planner/published_runs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "tests/support/temp_folder.h"

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
  const test::TempFolder folder;
  const std::string path = folder / "published_runs_test.csv";
  std::ofstream(path) << text;
  return read_published_runs(path);
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

/// The only row of a table with one more column.
PublishedRun with_column(const std::string& row, const std::string& name,
                         const std::string& value) {
  const std::string header = replaced(kHeader, "mem_per_device", "mem_per_device," + name);
  return read(header + replaced(row, "\n", "," + value + "\n")).at(0);
}

TEST(PublishedRuns, NoteOfEagerOrTorchCompile_SaysWhoseKernels) {
  const auto run = [](const std::string& year, const std::string& note) {
    return with_column(replaced(kRow, ",2021,", "," + year + ","), "notes", note).run;
  };
  EXPECT_EQ(run("2024", "eager").kernels, Kernels::kEager);
  EXPECT_EQ(run("2024", "torch.compile").kernels, Kernels::kCompiled);
  EXPECT_FALSE(run("2024", "torch.compile").fused_loss);
  EXPECT_EQ(run("2025", "torch.compile; step 100").kernels, Kernels::kCompiled);
  EXPECT_TRUE(run("2025", "torch.compile; step 100").fused_loss);
  EXPECT_EQ(read(std::string(kHeader) + kRow).at(0).run.kernels, Kernels::kOwn);
}

TEST(PublishedRuns, SoftwareOnH100_IsPytorchsFsdpOrMegatron) {
  const auto on_h100 = [](const std::string& sharding, const std::string& tp) {
    const std::string row = replaced(kRow, "A100-80GB (Selene),32,1,0,1,1,32,1,1,none",
                                     "H100-80GB,32," + tp + ",0,1,1,,1,1," + sharding);
    return with_column(row, "notes", "--tp-comm-overlap; logging");
  };
  EXPECT_EQ(on_h100("FSDP", "1").cluster, "h100-80gb");
  EXPECT_EQ(on_h100("none", "1").cluster, "dgx-h100");
  EXPECT_EQ(on_h100("FSDP", "8").cluster, "dgx-h100");
  EXPECT_TRUE(on_h100("none", "8").run.overlaps_tp);
  EXPECT_TRUE(on_h100("none", "8").run.sequence_parallel);
  EXPECT_FALSE(read(std::string(kHeader) + kRow).at(0).run.overlaps_tp);
}

TEST(PublishedRuns, MosaicModels_HaveNoDropoutAndAFusedLoss) {
  const PublishedRun mpt = read(kHeader + replaced(kRow, ",gpt,", ",mpt-1b,")).at(0);
  EXPECT_FALSE(mpt.size.dropout);
  EXPECT_TRUE(mpt.run.fused_loss);
  const PublishedRun gpt = read(std::string(kHeader) + kRow).at(0);
  EXPECT_TRUE(gpt.size.dropout);
  EXPECT_FALSE(gpt.run.fused_loss);
}

TEST(PublishedRuns, Fp4AndLora_AreRead) {
  const std::string fp4 =
      replaced(replaced(kRow, "fp16,full", "NVFP4,full"), "A100-80GB (Selene)", "DGX-GB300");
  EXPECT_EQ(read(kHeader + fp4).at(0).run.type, MatrixType::kFp4);
  const PublishedRun lora = read(kHeader + replaced(kRow, "7,train", "7,LoRA")).at(0);
  EXPECT_EQ(lora.unsupported, "");
  EXPECT_TRUE(lora.run.frozen);
  EXPECT_EQ(lora.run.gradient_bytes + lora.run.sync_bytes + lora.run.state_bytes, 0);
}

// The sizes that Qwen publishes. Megatron's ep 32 with dp 16 and tp 2 has whole experts.
TEST(PublishedRuns, SizesThatARowDoesNotGive_AreThoseOfThePreset) {
  const std::string row = replaced(replaced(replaced(kRow, "gpt,1.7,24,2304,24,,9216,51200,",
                                                     "Qwen3_30B_a3B (tokendrop),,,,,,,,"),
                                            "32,1,0,1,1,32,1,1,none", "32,2,0,1,1,16,1,32,none"),
                                   "A100-80GB (Selene)", "DGX-H100");
  const PublishedRun p = read(kHeader + row).at(0);
  EXPECT_EQ(p.unsupported, "");
  EXPECT_NEAR(p.size.parameters(), 30.5e9, 0.1e9);
  EXPECT_EQ(p.size.experts, 128);
  EXPECT_EQ(p.run.ep, 32);
  EXPECT_TRUE(p.run.whole_experts);
  EXPECT_TRUE(p.assumed.empty());
}

TEST(PublishedRuns, EpThatDoesNotDivide_HasNoPrediction) {
  const std::string row =
      replaced(replaced(kRow, "gpt,1.7,24,2304,24,,9216,51200,", "Qwen3_30B_a3B,,,,,,,,"),
               "32,1,0,1,1,32,1,1,none", "32,1,0,1,1,32,1,24,none");
  EXPECT_EQ(read(kHeader + row).at(0).unsupported,
            "ep 24 does not divide the 128 experts and dp 32");
}

// 24 heads and 24 layers, and a batch of 512 on 32 devices.
TEST(PublishedRuns, ImpossibleRow_HasNoPrediction) {
  const auto why = [](const std::string& from, const std::string& to) {
    return read(kHeader + replaced(kRow, from, to)).at(0).unsupported;
  };
  EXPECT_EQ(why("32,1,0,1,1,32,", ",5,0,1,1,32,"), "tp 5 does not divide the 24 heads");
  EXPECT_EQ(why("32,1,0,1,1,32,", "32,1,0,32,1,1,"), "32 stages, but 24 layers");
  EXPECT_EQ(why(",16,512,", ",16,500,"), "batch 500 is not a multiple of dp 32 x micro-batch 16");
  EXPECT_EQ(why(",16,512,", ",64,512,"), "batch 512 is not a multiple of dp 32 x micro-batch 64");
}

// What NVIDIA's recipes set: tp_comm_overlap but with NVFP4, overlap_p2p_comm with interleaved
// stages, grad_reduce_in_fp32 False, moe_a2a_overlap of Qwen3 235B on H100.
TEST(PublishedRuns, NvidiasRecipes_SayWhatOverlaps) {
  const auto run = [](const char* model, const char* device, const char* precision) {
    std::string row =
        replaced(replaced(kRow, "paper", "NVIDIA 26.04 NeMo Container"), "gpt", model);
    row = replaced(replaced(row, "A100-80GB (Selene)", device), "fp16,full", precision);
    return read(kHeader + replaced(row, "32,1,0,1,1,32,1", "32,4,1,2,2,4,1")).at(0).run;
  };
  const ClusterRun fp8 = run("llama3-70b", "DGX-GB200", "FP8,");
  EXPECT_TRUE(fp8.overlaps_tp);
  EXPECT_TRUE(fp8.overlaps_pp);
  EXPECT_EQ(fp8.gradient_bytes, 2);
  EXPECT_FALSE(fp8.overlaps_ep);
  EXPECT_FALSE(run("llama3-70b", "DGX-GB200", "NVFP4,").overlaps_tp);
  const ClusterRun qwen = run("Qwen3_235B_a22B", "DGX-H100", "FP8,");
  EXPECT_TRUE(qwen.overlaps_ep);
  EXPECT_FALSE(qwen.overlaps_tp);
  const ClusterRun other = read(std::string(kHeader) + kRow).at(0).run;
  EXPECT_FALSE(other.overlaps_pp);
  EXPECT_EQ(other.gradient_bytes, 4);
}

// PaLM: 46.2 % of 275 TFLOP/s; 6 flops for each of 540.4e9 parameters are 18.1 s of 2048 x 2048
// tokens on 6144 chips, and its attention is 1.5 % more.
TEST(PublishedRuns, Mfu_GivesTheTimeOfAStep) {
  const std::string row =
      replaced(replaced(replaced(kRow, "gpt,1.7,24,2304,24,,9216,51200,A100-80GB (Selene)",
                                 "palm-540B,540.4,118,18432,48,1,73728,256000,TPU v4"),
                        "32,1,0,1,1,32,1,1,none,16,512", "6144,12,,1,,512,1,1,FSDP,1,2048"),
               "3.53,,,,", ",,,,");
  const PublishedRun p = with_column(row, "mfu_pct", "46.2");
  EXPECT_EQ(p.unsupported, "");
  // heads of hidden / heads elements, where PaLM has 256: 5 % more parameters
  EXPECT_NEAR(p.step_s, 18.4, 0.07 * 18.4);
  EXPECT_EQ(with_column(row, "mfu_pct", "").step_s, 0);
}

// fp32: weights, gradients and two moments of 4 bytes each.
TEST(PublishedRuns, Fp32_HasNoMasterWeights) {
  const std::string row = replaced(replaced(kRow, "fp16,", "fp32,"), "A100-80GB (Selene)", "A64FX");
  const PublishedRun p = read(kHeader + row).at(0);
  EXPECT_EQ(p.cluster, "a64fx");
  EXPECT_EQ(p.run.element_bytes, 4);
  EXPECT_EQ(p.run.weight_bytes + p.run.gradient_bytes + p.run.state_bytes, 16);
}

TEST(PublishedRuns, TableOfVtrain_HasItsOwnColumns) {
  const std::string header =
      "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor "
      "parallelism,data parallelism,pipeline parallelism,iteration time (ms)\n";
  const std::string row = "8,64,2,2048,16,20,1024,2,1,4,372.160408\n";
  const auto runs = read(header + row + row);
  ASSERT_EQ(runs.size(), 2U);
  const PublishedRun& p = runs[1];
  EXPECT_EQ(p.id, "2");
  EXPECT_EQ(p.cluster, "a100-hdr");
  EXPECT_EQ(p.unsupported, "");
  EXPECT_EQ(p.run.tp, 2);
  EXPECT_EQ(p.run.dp, 1);
  EXPECT_EQ(p.run.pp, 4);
  EXPECT_EQ(p.run.global_batch, 64);
  EXPECT_EQ(p.run.micro_batch, 2);
  EXPECT_EQ(p.run.seq_len, 1024);
  EXPECT_EQ(p.size.hidden, 2048);
  EXPECT_EQ(p.size.heads, 16);
  EXPECT_EQ(p.size.layers, 20);
  EXPECT_EQ(p.run.recompute, Keep::kFull);
  EXPECT_DOUBLE_EQ(p.step_s, 0.372160408);
  EXPECT_EQ(p.assumed, std::vector<std::string>{"full recompute"});
  expect_refused(header + replaced(row, "8,64", "7,64"),
                 "published_runs_test.csv:2: tp x pp x dp x cp is 8, but devices is 7");
  expect_refused(replaced(header, "micro batch", "micro") + row, "no column 'micro_batch'");
}

TEST(PublishedRuns, InterleavedScheduleWithoutVp_MeansTwoStagesARank) {
  const std::string eight = replaced(kRow, "32,1,0,1,1,32,", "256,1,0,8,,32,");
  const PublishedRun p = with_column(eight, "schedule", "own interleaved");
  EXPECT_EQ(p.run.virtual_stages, 2);
  EXPECT_EQ(p.assumed, std::vector<std::string>{"2 virtual stages"});
  EXPECT_EQ(with_column(eight, "schedule", "1f1b").run.virtual_stages, 1);
  const std::string three = replaced(kRow, "32,1,0,1,1,32,", "256,1,0,8,3,32,");
  EXPECT_EQ(with_column(three, "schedule", "interleaved").run.virtual_stages, 3);
  EXPECT_TRUE(with_column(three, "schedule", "interleaved").assumed.empty());
  EXPECT_EQ(with_column(kRow, "schedule", "interleaved").run.virtual_stages, 1);  // one rank
  EXPECT_EQ(with_column(eight, "schedule", "gpipe").unsupported, "schedule 'gpipe' is unknown");
}

TEST(PublishedRuns, DpThatARowDoesNotGive_IsWhatTheOtherDegreesLeave) {
  EXPECT_EQ(read(kHeader + replaced(kRow, "32,1,0,1,1,32,", "32,2,0,2,1,,")).at(0).run.dp, 8);
  EXPECT_EQ(read(kHeader + replaced(kRow, "32,1,0,1,1,32,", ",2,0,2,1,,")).at(0).run.dp, 1);
  expect_refused(
      kHeader + replaced(kRow, "32,1,0,1,1,32,", "32,3,0,1,1,,"),
      "published_runs_test.csv:2: 32 devices are not a multiple of tp x pp x cp, which is 3");
  expect_refused(kHeader + replaced(kRow, "32,1,0,1,1,32,", "32,2,0,1,1,32,"),
                 "published_runs_test.csv:2: tp x pp x dp x cp is 64, but devices is 32");
}

TEST(PublishedRuns, Memory_IsReadAsPeopleWriteIt) {
  const auto memory = [](const std::string& text) {
    return read(kHeader + replaced(kRow, "29.5 GiB", text)).at(0).memory_bytes / (1 << 20);
  };
  EXPECT_EQ(memory("52000MB"), 52000);
  EXPECT_EQ(memory("52000.5 MiB"), 52000.5);
  EXPECT_EQ(memory("52GB"), 52 * 1024);
  EXPECT_EQ(memory("52.5 gib (max over ranks)"), 52.5 * 1024);
  EXPECT_EQ(memory("70 GiB (headroom 10)"), 70 * 1024);
  EXPECT_EQ(memory(""), 0);
  for (const char* text :
       {"~52 GiB", "52", "52 TB", "52 GiBs", "GiB", "0 GiB", "-52 GiB", "much"}) {
    expect_refused(kHeader + replaced(kRow, "29.5 GiB", text),
                   "published_runs_test.csv:2: mem_per_device is '" + std::string(text) + "'");
  }
}

TEST(PublishedRuns, RowWithExperts_HasNoPrediction) {
  const std::string sizes = ",46.7,32,4096,32,8,14336,32000,";
  for (const char* name : {"mixtral-8x7b", "Qwen3_30B_a3B", "some-MoE", "dense"}) {
    const std::string row = replaced(kRow, "gpt,1.7,24,2304,24,,9216,51200,", name + sizes);
    EXPECT_EQ(read(kHeader + row).at(0).unsupported, "the table has no sizes of experts") << name;
  }
  const std::string dense =
      replaced(kRow, "gpt,1.7,24,2304,24,,9216,51200,", "mistral-7b,7.2,32,4096,32,8,14336,32000,");
  EXPECT_EQ(read(kHeader + dense).at(0).unsupported, "");
}

// Narayanan et al. 2021: 137 TFLOP/s are 3.53 s. Korthikanti et al. 2022: GPT-3 with selective
// recompute takes 13.75 s at 52.8 % of 312 TFLOP/s; they count 51.4 % without the recompute, with
// attention in full.
TEST(PublishedRuns, FlopsOfTheHardware_GiveTheTimeOfAStep) {
  const std::string full = replaced(kRow, "3.53,,,,", ",,137,hardware (recompute counted),");
  EXPECT_NEAR(read(kHeader + full).at(0).step_s, 3.53, 0.005 * 3.53);
  const std::string gpt3 = replaced(
      replaced(replaced(kRow, "1.7,24,2304,24,,9216,51200,", "175,96,12288,96,,49152,51200,"),
               "32,1,0,1,1,32,1,1,none,16,512", "64,8,1,8,3,1,1,1,none,1,64"),
      "full,3.53,,,,", "selective,,,164.7,hardware,");
  EXPECT_NEAR(read(kHeader + gpt3).at(0).step_s, 13.75, 0.005 * 13.75);
  expect_refused(kHeader + replaced(kRow, "3.53,,,,", ",,137,,"),
                 "published_runs_test.csv:2: tflops_counts is ''");
}

TEST(PublishedRuns, OutOfMemory_IsNoMemory) {
  for (const char* text : {"OOM", "oom", "Out of memory", "29138.6 MiB (OOM after an epoch)"}) {
    const PublishedRun p = read(kHeader + replaced(kRow, "29.5 GiB", text)).at(0);
    EXPECT_TRUE(p.out_of_memory) << text;
    EXPECT_EQ(p.memory_bytes, 0) << text;
  }
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

TEST(PublishedRuns, UnknownPrecisionAndHeadsThatDoNotDivide_HaveNoPrediction) {
  const auto why = [](const std::string& from, const std::string& to) {
    return read(kHeader + replaced(kRow, from, to)).at(0).unsupported;
  };
  EXPECT_EQ(why("fp16,full", "int3,full"), "precision 'int3' is unknown");
  EXPECT_EQ(why("fp16,full", "MXFP8,full"), "");
  EXPECT_EQ(why("2304,24,", "2304,7,"), "hidden 2304 is not a multiple of 7 heads");
}

TEST(PublishedRuns, UnknownDevice_HasNoPrediction) {
  const PublishedRun p = read(kHeader + replaced(kRow, "A100-80GB (Selene)", "WSE-3")).at(0);
  EXPECT_NE(p.unsupported.find("WSE-3"), std::string::npos);
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

// No constant was fitted to these; vTrain's own error on several hosts is 14.7 %.
TEST_F(RealPublishedRuns, VTrainOnOneHost_IsWithin15Percent) {
  const fs::path data = std::getenv("CLEAVE_DATA");  // NOLINT(concurrency-mt-unsafe)
  runs_ = read_published_runs((data / "published_runs" / "vtrain_single_node.csv").string());
  EXPECT_EQ(summary("vTrain").times, 480);
  EXPECT_LT(summary("vTrain").time, 0.147);
}

TEST_F(RealPublishedRuns, EachRow_HasAPrediction) {
  for (const PublishedRun& p : runs_) EXPECT_EQ(p.unsupported, "") << p.id;
}

TEST_F(RealPublishedRuns, Blackwell_IsWithin8Percent) {
  double sum = 0;
  int count = 0;
  for (const PublishedRun& p : runs_) {
    if (!p.cluster.starts_with("gb") && p.cluster != "b200") continue;
    sum += std::abs(cluster_cost(cluster_preset(p.cluster), p.size, p.run).time.total() / p.step_s -
                    1);
    ++count;
  }
  EXPECT_GE(count, 25);
  EXPECT_LT(sum / count, 0.08);
}

TEST_F(RealPublishedRuns, MosaicRuns_FitAsTheyDid) {
  EXPECT_GE(summary("MosaicML").times, 25);
  EXPECT_EQ(summary("MosaicML").fits_wrong, 0);
}

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
