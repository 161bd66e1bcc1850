#include "cleave/mesh/cuda.h"

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

}  // namespace
}  // namespace cleave::cuda_test
