#include "cleave/torch_internals/op_work.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace cleave::op_work_test {
namespace {

using at::Tensor;

Tensor on_meta(at::IntArrayRef sizes) {
  return at::empty(sizes, at::device(at::kMeta));
}

// The expected numbers below are counted by hand from the sizes.
TEST(WorkCounter, Products_AreCountedBySizesAndMemoryOrder) {
  const Tensor x = on_meta({6, 5}).requires_grad_(), w = on_meta({7, 5}).requires_grad_();
  WorkCounter counter;
  const Tensor y = at::linear(x, w);
  const MatrixWork forward{.rows = 6, .inner = 5, .columns = 7, .is_second_transposed = true};
  EXPECT_EQ(counter.take().products, (std::map<MatrixWork, double>{{forward, 1}}));
  y.backward(at::empty_like(y));
  const std::map<MatrixWork, double> backward = counter.take().products;
  double flops = 0;
  for (const auto& [shape, count] : backward) flops += count * shape.flops();
  EXPECT_EQ(backward.size(), 2U);
  EXPECT_EQ(flops, 2 * 2 * 6 * 5 * 7);
  const Tensor batch = on_meta({3, 2, 4});
  (void)batch.bmm(on_meta({3, 4, 5}));
  const MatrixWork product{.batch = 3, .rows = 2, .inner = 4, .columns = 5};
  EXPECT_EQ(counter.take().products, (std::map<MatrixWork, double>{{product, 1}}));
  EXPECT_EQ(product.flops(), 2 * 3 * 2 * 4 * 5);
}

// What is written counts twice unless the pass reads it: it is read into the cache first.
TEST(WorkCounter, Passes_MoveTheBytesThatTheyReadAndWrite) {
  const Tensor a = on_meta({8, 4}), b = on_meta({8, 4});  // 128 bytes each
  WorkCounter counter;
  (void)(a + b);
  EXPECT_EQ(counter.take().moved_bytes(), (2 + 2) * 128);
  Tensor c = on_meta({8, 4});
  c.add_(a);
  EXPECT_EQ(counter.take().moved_bytes(), (2 + 1) * 128);
  at::mul_out(c, a, b);
  EXPECT_EQ(counter.take().moved_bytes(), (2 + 2) * 128)
      << "libtorch names the result as an input too";
  (void)a.clone();
  EXPECT_EQ(counter.take().moved_bytes(), (1 + 2) * 128);
  (void)at::softmax(a, 1);  // an operation inside another counts once
  EXPECT_EQ(counter.take().moved_bytes(), (1 + 2) * 128);
  (void)(a.narrow(0, 0, 2) + on_meta({1}).expand({2, 4}));  // the expanded one has four bytes
  EXPECT_EQ(counter.take().moved_bytes(), 32 + 4 + 2 * 32);
  count_pass({&a}, {&b, &c});
  EXPECT_EQ(counter.take().moved_bytes(), (1 + 2 * 2) * 128);
}

// Like tables that are made once and copied to the device.
TEST(WorkCounter, OtherDevices_CountAsOperationsOnly) {
  const Tensor here = at::ones({8, 4});
  WorkCounter counter;
  (void)(here + here).mm(here.t()).to(at::kMeta);
  const OpWork work = counter.take();
  EXPECT_EQ(work.moved_bytes(), 0);
  EXPECT_TRUE(work.products.empty());
  EXPECT_GE(work.operations, 4);
}

TEST(WorkCounter, ViewsAndNewMemory_MoveNothing) {
  const Tensor a = on_meta({8, 4});
  WorkCounter counter;
  (void)a.t().view({4, 2, 4}).unsqueeze(0).expand({3, 4, 2, 4});
  (void)a.split(2);
  (void)at::empty_like(a);
  const OpWork work = counter.take();
  EXPECT_EQ(work.moved_bytes(), 0);
  EXPECT_GE(work.operations, 6);
}

// c is read after a pass that moved 3 x 4096 bytes; the element of 2^13 to 2^14 has its bytes.
TEST(WorkCounter, ReuseDistance_IsTheBytesMovedInBetween) {
  const Tensor a = on_meta({8}), far = on_meta({1024});
  WorkCounter counter;
  const Tensor c = a + a;
  (void)(far + far);
  OpWork before = counter.take();
  EXPECT_EQ(before.moved[13], 0);
  (void)c.neg();
  EXPECT_EQ(counter.take().moved[13], (1 + 2) * 32);
}

// x [2, 4] is made just before the product; w [4, 4] was used before 6 MiB of a pass and x.
TEST(WorkCounter, Products_HaveTheBytesOfTheirMatricesByReuseDistance) {
  const Tensor x = on_meta({2, 4}), w = on_meta({4, 4}), far = on_meta({1 << 19});
  const MatrixWork shape{.rows = 2, .inner = 4, .columns = 4};
  WorkCounter counter;
  (void)x.mm(w);
  (void)(far + far);
  const Tensor y = x.neg();
  counter.take();
  (void)y.mm(w);
  BytesByDistance bytes{};
  bytes[0] = 32;
  bytes[22] = 64;
  OpWork once = counter.take();
  EXPECT_EQ(once.factors, (std::map<MatrixWork, BytesByDistance>{{shape, bytes}}));
  (void)y.mm(w);  // both again
  bytes[22] = 0;
  bytes[0] = 96;
  EXPECT_EQ(counter.take().factors.at(shape), bytes);
  once.add(OpWork(once), 2);
  EXPECT_EQ(once.factors.at(shape)[22], 3 * 64);
}

// A message fills it without an operation.
TEST(WorkCounter, NewMemory_IsNear) {
  const Tensor w = on_meta({4, 4});
  WorkCounter counter;
  (void)at::empty({2, 4}, w.options()).mm(w);
  const OpWork work = counter.take();
  EXPECT_EQ(work.factors.begin()->second[0], 32);
}

TEST(WorkCounter, KernelsOfCleave_AreCountedOnItsThreadOnly) {
  const AttentionWork attention{.batch = 2, .heads = 3, .kv_heads = 3, .queries = 4, .keys = 4};
  count_attention(attention);
  WorkCounter counter;
  count_attention(attention);
  count_random_numbers(5);
  OpWork work = counter.take();
  EXPECT_EQ(work.attention, (std::map<AttentionWork, double>{{attention, 1}}));
  EXPECT_EQ(work.random_numbers, 5);
  work.add(work, 2);
  EXPECT_EQ(work.attention.at(attention), 3);
  EXPECT_EQ(work.random_numbers, 15);
  EXPECT_EQ(test::thrown_by([] { const WorkCounter second; }).code(), Code::kBug);
}

}  // namespace
}  // namespace cleave::op_work_test
