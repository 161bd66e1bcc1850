// Oracle: base/philox.h's generator on the CPU, bit for bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/philox.h"
#include "cleave/kernels/cuda/kernel_set.h"
#include "cleave/kernels/device.h"
#include "tests/support/fiber_block.h"
#include "tests/support/stream_shard.h"

namespace cleave::cuda_random_test {
namespace {

using test::FiberLaunch;
using test::StreamShard;

constexpr uint64_t kKey = 0x0123456789ABCDEF;

TEST(CudaDropout, AnyShard_HasTheBitsOfTheGeneratorOnTheCpu) {
  const KernelSet<FiberLaunch> kernels;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const StreamShard& s : test::kStreamShards) {
      test::expect_dropout(s, type, [&](const DropoutJob& job) { kernels.dropout(job); });
    }
  }
}

TEST(CudaInitialValues, AnyShard_HaveTheBitsOfTheGeneratorOnTheCpu) {
  const KernelSet<FiberLaunch> kernels;
  for (const bool is_normal : {true, false}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const StreamShard& s : test::kStreamShards) {
        const std::vector<uint64_t> indices = s.indices();
        const Tensor want = at::empty({std::ssize(indices)}, at::kDouble);
        auto* of = want.mutable_data_ptr<double>();
        for (size_t i = 0; i < indices.size(); ++i) {
          float u = 0;
          fill_uniform(kKey, 0, indices[i], {&u, 1});
          of[i] = double{u} * 2 - 1;
          if (is_normal) fill_normal(kKey, indices[i], {of + i, 1});
        }
        const Tensor got = at::full(want.sizes(), NAN, at::dtype(type));
        kernels.initial_values({.is_bf16 = type == at::kBFloat16,
                                .is_normal = is_normal,
                                .count = got.numel(),
                                .out = got.mutable_data_ptr(),
                                .place = s.place(),
                                .key = kKey,
                                .factor = 0.02});
        EXPECT_TRUE(at::equal(got, want.mul(0.02).to(type))) << type << ' ' << s.sizes;
      }
    }
  }
}

// Memory that is not aligned to a quad, and the elements beside it.
TEST(CudaDropout, PartOfMemory_LeavesItsNeighbours) {
  const KernelSet<FiberLaunch> kernels;
  for (const int64_t begin : {1, 2, 4}) {
    const Tensor x = at::randn({40});
    const Tensor out = at::zeros({40});
    kernels.dropout({.count = 21,
                     .x = x.const_data_ptr<float>() + begin,
                     .out = out.mutable_data_ptr<float>() + begin,
                     .place = StreamShard{{1, 1, 21}, {{0, 1}}}.place(),
                     .key = kKey,
                     .p = 0,
                     .scale = 1});
    EXPECT_TRUE(at::equal(out.narrow(0, begin, 21), x.narrow(0, begin, 21)));
    EXPECT_EQ(out.count_nonzero().item<int64_t>(), 21);
  }
}

TEST(ShardPlace, MoreRangesThanKernelsSupport_IsEmpty) {
  std::vector<Range> ranges;
  for (int64_t i = 0; i < 9; ++i) ranges.push_back({2 * i, 2 * i + 1});
  EXPECT_FALSE(shard_place({20}, 0, ranges, 0).has_value());
}

}  // namespace
}  // namespace cleave::cuda_random_test
