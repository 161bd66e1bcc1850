#pragma once
#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/philox.h"
#include "cleave/kernels/device.h"

namespace cleave::test {

/// A whole tensor [outer, whole, inner] of numbers of a random stream, of whose middle dim a rank
/// has ranges.
struct StreamShard {
  std::vector<int64_t> sizes;
  std::vector<Range> ranges;
  uint64_t first = 0;  // the number of the whole's first element

  [[nodiscard]] ShardPlace place() const { return shard_place(sizes, 1, ranges, first).value(); }

  /// The number of each of the rank's elements, in memory order.
  [[nodiscard]] std::vector<uint64_t> indices() const {
    std::vector<uint64_t> out;
    for (int64_t o = 0; o < sizes[0]; ++o) {
      for (const Range& r : ranges) {
        for (int64_t m = r.begin; m < r.end; ++m) {
          for (int64_t i = 0; i < sizes[2]; ++i) {
            out.push_back(first + static_cast<uint64_t>((o * sizes[1] + m) * sizes[2] + i));
          }
        }
      }
    }
    return out;
  }
};

inline const std::vector<StreamShard> kStreamShards{
    {{1, 1, 1}, {{0, 1}}},       {{1, 1, 4099}, {{0, 1}}},
    {{1, 1, 2048}, {{0, 1}}, 5},  // begins inside a counter's four numbers
    {{3, 5, 7}, {{1, 3}}},       {{3, 9, 1}, {{0, 2}, {4, 5}, {7, 9}}, (uint64_t{1} << 40) + 2},
    {{2, 6, 4}, {{3, 6}}},
};

/// Compares a dropout kernel with fill_uniform(), one number at a time, bit for bit.
inline void expect_dropout(const StreamShard& s, at::ScalarType type,
                           const std::function<void(const DropoutJob&)>& dropout) {
  constexpr uint64_t kKey = 0xFEDCBA9876543210, kStep = 0x0000000300000007;
  constexpr float kP = 0.3F;
  const std::vector<uint64_t> indices = s.indices();
  const Tensor x = at::randn({std::ssize(indices)}).to(type);
  const Tensor scale = at::scalar_tensor(1 / (1 - kP), at::kFloat).to(type);
  const Tensor uniform = at::empty({x.numel()}, at::kFloat);
  auto* u = uniform.mutable_data_ptr<float>();
  for (const uint64_t index : indices) fill_uniform(kKey, kStep, index, {u++, 1});
  const Tensor mask = uniform.ge(kP).to(type) * scale;
  // One element more, to see that the neighbour is left alone.
  const Tensor memory = at::full({x.numel() + 1}, 7, x.options());
  const Tensor got = memory.narrow(0, 0, x.numel());
  DropoutJob job{.is_bf16 = type == at::kBFloat16,
                 .count = x.numel(),
                 .x = x.const_data_ptr(),
                 .out = got.mutable_data_ptr(),
                 .place = s.place(),
                 .key = kKey,
                 .step = kStep,
                 .p = kP,
                 .scale = scale.to(at::kFloat).item<float>()};
  dropout(job);
  EXPECT_TRUE(at::equal(got, x * mask)) << type << ' ' << s.sizes;
  job.x = nullptr;
  dropout(job);
  EXPECT_TRUE(at::equal(got, mask)) << type << ' ' << s.sizes;
  EXPECT_EQ(memory[-1].item<float>(), 7);
}

}  // namespace cleave::test
