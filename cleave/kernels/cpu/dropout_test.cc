// Oracle: fill_uniform(), one number at a time.
#include "cleave/kernels/cpu/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/philox.h"
#include "cleave/kernels/device.h"

namespace cleave::cpu_dropout_test {
namespace {

constexpr uint64_t kKey = 0xFEDCBA9876543210;
constexpr uint64_t kStep = 0x0000000300000007;
constexpr float kP = 0.4F;

/// A whole tensor [outer, whole, inner], of whose middle dim a rank has ranges.
struct Shape {
  std::vector<int64_t> sizes;
  std::vector<Range> ranges;
  uint64_t first = 0;
};

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

void expect_stream(const Shape& s, at::ScalarType type) {
  const std::vector<uint64_t> indices = indices_of(s);
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
                 .place = shard_place(s.sizes, 1, s.ranges, s.first).value(),
                 .key = kKey,
                 .step = kStep,
                 .p = kP,
                 .scale = scale.to(at::kFloat).item<float>()};
  dropout_elements(job);
  EXPECT_TRUE(at::equal(got, x * mask)) << type << ' ' << s.sizes;
  job.x = nullptr;
  dropout_elements(job);
  EXPECT_TRUE(at::equal(got, mask)) << type << ' ' << s.sizes;
  EXPECT_EQ(memory[-1].item<float>(), 7);
}

TEST(CpuDropout, AnyShard_HasTheBitsOfItsStream) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Shape& s : {Shape{{1, 1, 1}, {{0, 1}}},
                           {{1, 1, 5003}, {{0, 1}}},
                           {{1, 1, 2048}, {{0, 1}}, 5},  // begins inside a counter's four numbers
                           {{3, 5, 7}, {{1, 3}}},
                           {{3, 9, 1}, {{0, 2}, {4, 5}, {7, 9}}, (uint64_t{1} << 40) + 2},
                           {{2, 6, 1500}, {{0, 1}, {3, 6}}}}) {
      expect_stream(s, type);
    }
  }
}

// A vector of counters whose low halves wrap.
TEST(CpuDropout, CountersBeyond32Bits_Carry) {
  for (const uint64_t before : {1U, 7U, 40U, 64U}) {
    expect_stream({{1, 1, 300}, {{0, 1}}, (uint64_t{1} << 34) - before}, at::kFloat);
  }
}

// 70,000 elements are several threads' parts.
TEST(CpuDropout, ManyElements_HaveTheBitsOfTheirStream) {
  expect_stream({{1, 1, 70000}, {{0, 1}}, 3}, at::kBFloat16);
  expect_stream({{10, 8, 1000}, {{2, 5}, {6, 8}}, 1}, at::kFloat);
}

}  // namespace
}  // namespace cleave::cpu_dropout_test
