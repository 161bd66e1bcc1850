#include "cleave/kernels/cpu/dropout.h"

#include "tests/support/stream_shard.h"

namespace cleave::cpu_dropout_test {
namespace {

using test::expect_dropout;
using test::StreamShard;

TEST(CpuDropout, AnyShard_HasTheBitsOfItsStream) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const StreamShard& s : test::kStreamShards) expect_dropout(s, type, dropout_elements);
    expect_dropout({{2, 6, 1500}, {{0, 1}, {3, 6}}}, type, dropout_elements);
  }
}

// A vector of counters whose low halves wrap.
TEST(CpuDropout, CountersBeyond32Bits_Carry) {
  for (const uint64_t before : {1U, 7U, 40U, 64U}) {
    expect_dropout({{1, 1, 300}, {{0, 1}}, (uint64_t{1} << 34) - before}, at::kFloat,
                   dropout_elements);
  }
}

// 70,000 elements are several threads' parts.
TEST(CpuDropout, ManyElements_HaveTheBitsOfTheirStream) {
  expect_dropout({{1, 1, 70000}, {{0, 1}}, 3}, at::kBFloat16, dropout_elements);
  expect_dropout({{10, 8, 1000}, {{2, 5}, {6, 8}}, 1}, at::kFloat, dropout_elements);
}

}  // namespace
}  // namespace cleave::cpu_dropout_test
