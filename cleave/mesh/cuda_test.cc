#include "cleave/mesh/cuda.h"

#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/mesh/job.h"
#include "cleave/mesh/mesh.h"
#include "tests/support/gpus.h"
#include "tests/support/thrown.h"

namespace cleave::cuda_test {
namespace {

using test::thrown_by;

TEST(Cuda, WithoutAGpu_SaysWhatIsMissingAndWhatWorks) {
  if (test::why_no_gpu().empty()) GTEST_SKIP() << "this host has a GPU";
  const Error error = thrown_by([] { (void)device_of("cuda"); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_TRUE(std::string(error.what()).starts_with("--device cuda: ")) << error.what();
  EXPECT_NE(std::string(error.what()).find("choose cpu"), std::string::npos) << error.what();
}

TEST(Cuda, DeviceFlag_IsADeviceOrAnError) {
  EXPECT_EQ(device_of("cpu"), at::Device(at::kCPU));
  EXPECT_EQ(thrown_by([] { (void)device_of("tpu"); }).code(), Code::kUsage);
}

TEST(Cuda, ManyRanksWithoutALauncher_AreRefusedWithTheLaunchCommand) {
  SKIP_WITHOUT_GPUS(1);
  const Error error = thrown_by([] { run_job({.num_ranks = 2, .device = "cuda"}, [](World&) {}); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_NE(std::string(error.what()).find("cleave launch -n 2 --"), std::string::npos)
      << error.what();
}

TEST(Cuda, RankThread_HasItsGpuAndReturnsItsTensors) {
  SKIP_WITHOUT_GPUS(1);
  run_job({.num_ranks = 1, .device = "cuda"}, [](World& world) {
    const Axis axis(world.group({0}, "one"));
    const at::Tensor a = at::arange(6, at::dtype(at::kDouble).device(at::kCUDA)).view({2, 3});
    EXPECT_TRUE(at::equal(a.matmul(a.t()).to(at::kCPU),
                          at::tensor({5.0, 14.0, 14.0, 50.0}).to(at::kDouble).view({2, 2})));
    EXPECT_TRUE(axis.all_reduce(a, "test").is_cuda());
  });
}

// As when a launcher sets neither LOCAL_RANK nor CUDA_VISIBLE_DEVICES for each rank.
TEST(OwnGpus, SameGpuOnTwoRanks_IsRefusedWithBothRanks) {
  const Error error = thrown_by([] {
    run_ranks(3, [](World& world) {
      check_own_gpus(world, std::string(16, world.rank() == 1 ? 'b' : 'a'));
    });
  });
  EXPECT_EQ(error.code(), Code::kShape);
  const std::string what = error.what();
  EXPECT_TRUE(what.starts_with("--device cuda: ranks 0 and 2 use the same GPU; ")) << what;
  EXPECT_NE(what.find("CLEAVE_SHARE_GPU=1"), std::string::npos) << what;
}

TEST(OwnGpus, OneForEachRank_AreAccepted) {
  run_ranks(3, [](World& world) {
    check_own_gpus(world, std::string(15, '\0') + static_cast<char>(world.rank()));
  });
  run_ranks(1, [](World& world) { check_own_gpus(world, ""); });
}

TEST(GpuSharing, Variable_IsReadOrRefused) {
  constexpr const char* kName = "CLEAVE_SHARE_GPU";
  for (const auto& [value, sharing] : {std::pair<const char*, GpuSharing>{"", GpuSharing::kNone},
                                       {"0", GpuSharing::kNone},
                                       {"1", GpuSharing::kHost},
                                       {"nccl", GpuSharing::kNccl}}) {
    setenv(kName, value, 1);
    EXPECT_EQ(gpu_sharing(), sharing) << value;
  }
  setenv(kName, "yes", 1);
  const Error error = thrown_by([] { (void)gpu_sharing(); });
  unsetenv(kName);
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_NE(std::string(error.what()).find("CLEAVE_SHARE_GPU=yes"), std::string::npos);
}

// With one rank NCCL copies at most, but it connects, runs on its stream and shuts down.
TEST(NcclGroup, OfOneRank_KeepsTheDataOfEveryCollective) {
  SKIP_WITHOUT_GPUS(1);
  run_ranks(1, [](World& world) {
    const auto device = cuda().take(0, 20);
    const auto group = world.group({0}, "one");
    for (const bool aborts : {false, true}) {
      const auto nccl = device->connect(*group);
      const at::Tensor in = at::arange(12, at::dtype(at::kFloat).device(at::kCUDA));
      const at::Tensor out = at::zeros_like(in);
      const std::vector<int64_t> widths{12};
      void* const to = out.mutable_data_ptr();
      const void* const from = in.const_data_ptr();
      for (const std::function<DeviceWorkPtr()>& call : std::vector<std::function<DeviceWorkPtr()>>{
               [&] { return nccl->all_reduce(from, to, 12, DType::kF32, ReduceOp::kSum); },
               [&] { return nccl->all_gather(from, to, 1, widths, DType::kF32); },
               [&] { return nccl->reduce_scatter(from, to, 1, widths, DType::kF32); },
               [&] { return nccl->all_to_all(from, widths, to, widths, DType::kF32); }}) {
        out.zero_();
        call()->wait();
        EXPECT_TRUE(at::equal(out, in));
      }
      nccl->broadcast(to, 12, DType::kF32, 0)->wait();
      EXPECT_TRUE(at::equal(out, in));
      EXPECT_EQ(nccl->failure(), "");
      if (aborts) nccl->abort();
    }
  });
}

}  // namespace
}  // namespace cleave::cuda_test
