#include "cleave/torch_internals/op_clock.h"

#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace cleave::op_clock_test {
namespace {

int64_t calls_of(const OpClock& clock, std::string_view operation) {
  for (const OpTime& time : clock.operations()) {
    if (time.name == operation) return time.calls;
  }
  return 0;
}

TEST(OpClock, Operations_AreThoseOfItsThreadDuringItsLifetime) {
  const at::Tensor x = at::ones({4, 4});
  x.mm(x);
  const OpClock clock;
  for (int i = 0; i < 3; ++i) x.mm(x);
  std::thread([&] { x.mm(x); }).join();
  EXPECT_EQ(calls_of(clock, "aten::mm"), 3);
}

TEST(OpClock, Products_AreCountedByShapeOnItsThread) {
  count_product({.rows = 1, .inner = 2, .columns = 3});
  const OpClock clock;
  for (int i = 0; i < 2; ++i) count_product({.rows = 4, .inner = 2, .columns = 3});
  count_product({.rows = 4, .inner = 3, .columns = 2});
  std::thread([] { count_product({.rows = 5, .inner = 2, .columns = 3}); }).join();
  EXPECT_EQ(clock.products(), (ProductCounts{{{4, 2, 3}, 2}, {{4, 3, 2}, 1}}));
}

TEST(OpClock, SecondClockOnAThread_IsABug) {
  for (int again = 0; again < 2; ++again) {
    const OpClock clock;
    EXPECT_EQ(test::thrown_by([] { const OpClock second; }).code(), Code::kBug);
    std::thread([] { const OpClock other; }).join();
    const at::Tensor x = at::ones({4, 4});
    x.mm(x);
    EXPECT_EQ(calls_of(clock, "aten::mm"), 1) << "the first one keeps counting";
  }
}

}  // namespace
}  // namespace cleave::op_clock_test
