// Oracle: base/philox.h's generator on the CPU, bit for bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/philox.h"
#include "cleave/kernels/cuda/kernel_set.h"
#include "cleave/kernels/device.h"
#include "tests/support/fiber_block.h"

namespace cleave::cuda_random_test {
namespace {

using test::FiberLaunch;

constexpr uint64_t kKey = 0x0123456789ABCDEF;
constexpr float kP = 0.3F;

/// A shard: a whole tensor [outer, whole, inner], of whose middle dim a rank has ranges.
struct Shape {
  std::vector<int64_t> sizes;
  std::vector<Range> ranges;
  uint64_t first = 0;
};
const std::vector<Shape> kShapes{
    {{1, 1, 1}, {{0, 1}}},       {{1, 1, 4099}, {{0, 1}}},
    {{1, 1, 2048}, {{0, 1}}, 5},  // begins inside a counter's four numbers
    {{3, 5, 7}, {{1, 3}}},       {{3, 9, 1}, {{0, 2}, {4, 5}, {7, 9}}, (uint64_t{1} << 40) + 2},
    {{2, 6, 4}, {{3, 6}}},
};

/// Number of the stream for each element, in memory order.
std::vector<uint64_t> indices_of(const Shape& s) {
  std::vector<uint64_t> out;
  for (int64_t o = 0; o < s.sizes[0]; ++o) {
    for (const Range& r : s.ranges) {
      for (int64_t m = r.begin; m < r.end; ++m) {
        for (int64_t i = 0; i < s.sizes[2]; ++i) {
          out.push_back(s.first + static_cast<uint64_t>((o * s.sizes[1] + m) * s.sizes[2] + i));
        }
      }
    }
  }
  return out;
}

ShardPlace place_of(const Shape& s) {
  return shard_place(s.sizes, 1, s.ranges, s.first).value();
}

TEST(CudaDropout, AnyShard_HasTheBitsOfTheGeneratorOnTheCpu) {
  const KernelSet<FiberLaunch> kernels;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Shape& s : kShapes) {
      const std::vector<uint64_t> indices = indices_of(s);
      const Tensor x = at::randn({std::ssize(indices)}).to(type);
      const Tensor scale = at::scalar_tensor(1 / (1 - kP), at::kFloat).to(type);
      const Tensor want = at::empty_like(x);
      for (size_t i = 0; i < indices.size(); ++i) {
        float u = 0;
        fill_uniform(kKey, 9, indices[i], {&u, 1});
        const auto at = static_cast<int64_t>(i);
        want[at] = u >= kP ? x[at] * scale : x[at] * 0;
      }
      const Tensor got = at::full_like(x, NAN);
      DropoutJob job{.is_bf16 = type == at::kBFloat16,
                     .count = x.numel(),
                     .x = x.const_data_ptr(),
                     .out = got.mutable_data_ptr(),
                     .place = place_of(s),
                     .key = kKey,
                     .step = 9,
                     .p = kP,
                     .scale = scale.to(at::kFloat).item<float>()};
      kernels.dropout(job);
      EXPECT_TRUE(at::equal(got, want)) << type << ' ' << s.sizes;
      job.x = nullptr;
      kernels.dropout(job);
      EXPECT_TRUE(at::equal(got, want.ne(0).to(type) * scale)) << type << ' ' << s.sizes;
    }
  }
}

TEST(CudaInitialValues, AnyShard_HaveTheBitsOfTheGeneratorOnTheCpu) {
  const KernelSet<FiberLaunch> kernels;
  for (const bool is_normal : {true, false}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const Shape& s : kShapes) {
        const std::vector<uint64_t> indices = indices_of(s);
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
                                .place = place_of(s),
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
                     .place = place_of({{1, 1, 21}, {{0, 1}}}),
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
