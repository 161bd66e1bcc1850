#include "cleave/mesh/axis.h"

#include <chrono>
#include <functional>
#include <thread>

#include <c10/util/thread_name.h>
#include <gtest/gtest.h>

#include "cleave/mesh/scalar_type.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::axis_test {
namespace {

using test::on_ranks;
using test::thrown_by;
using test::whole_numbers;
using Sizes = std::vector<int64_t>;

/// The input of rank `r`.
Tensor of_rank(int r, at::IntArrayRef shape) {
  return whole_numbers(shape, static_cast<uint64_t>(r) + 1);
}

/// 7 elements over the ranks, unevenly; rank 3 of 4 has none.
Sizes widths_for(int tp) {
  const std::vector<Sizes> all = {{7}, {2, 5}, {3, 0, 4}, {4, 1, 2, 0}};
  return all[static_cast<size_t>(tp) - 1];
}

TEST(Axis, AllReduce_SumsAndTakesTheMaximumOfAnyStrides) {
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      Tensor sum = at::zeros({3, 4}, at::kDouble);
      Tensor top = at::full({3, 4}, -100.0, at::kDouble);
      for (int r = 0; r < tp; ++r) {
        sum += of_rank(r, {4, 3}).t();
        top = at::maximum(top, of_rank(r, {4, 3}).t());
      }
      const Tensor mine = of_rank(axis.rank(), {4, 3}).t();  // not contiguous
      EXPECT_TRUE(at::equal(axis.all_reduce(mine, "test"), sum));
      EXPECT_TRUE(at::equal(axis.all_reduce(mine, "test", ReduceOp::kMax), top));
      EXPECT_TRUE(at::equal(mine, of_rank(axis.rank(), {4, 3}).t())) << "the input was changed";
    });
  }
}

TEST(Axis, AllReduceOfHalfPrecision_AddsInFp32) {
  on_ranks(4, [](const Axis& axis) {
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      // bf16 cannot represent 256 + 1, nor fp16 2048 + 1: sums in the type would lose the ones.
      const double large = type == at::kBFloat16 ? 256 : 2048;
      const Tensor mine = at::full({2}, axis.rank() == 0 ? large : 1, at::dtype(type));
      const Tensor want = at::full({2}, large + 3, at::kFloat).to(type);
      EXPECT_TRUE(at::equal(axis.all_reduce(mine, "test"), want));
    }
    const Tensor count = at::full({1}, axis.rank(), at::kLong);
    EXPECT_EQ(axis.all_reduce(count, "test").item<int64_t>(), 6);
  });
}

TEST(Axis, SendAndRecv_MoveATensorOfAnyStridesAndType) {
  on_ranks(3, [](const Axis& axis) {
    const int next = (axis.rank() + 1) % 3;
    const int before = (axis.rank() + 2) % 3;
    for (const auto type : {at::kDouble, at::kBFloat16, at::kLong}) {
      const Tensor mine = of_rank(axis.rank(), {4, 3}).to(type).t();  // not contiguous
      axis.send(mine, next, "test");
      const Tensor got = axis.recv(before, {3, 4}, at::dtype(type), "test");
      EXPECT_TRUE(at::equal(got, of_rank(before, {4, 3}).to(type).t()));
    }
  });
  EXPECT_EQ(thrown_by([] { Axis().send(at::ones({1}), 0, "test"); }).code(), Code::kUsage);
  EXPECT_EQ(thrown_by([] { (void)Axis().recv(0, {1}, at::kFloat, "test"); }).code(), Code::kUsage);
}

TEST(Axis, AllGather_JoinsUnevenAndEmptyBlocksAlongAnyDim) {
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      const Sizes widths = widths_for(tp);
      for (int64_t dim = 0; dim < 3; ++dim) {
        std::vector<Tensor> blocks;
        for (int r = 0; r < tp; ++r) {
          Sizes shape{2, 3, 4};
          shape[static_cast<size_t>(dim)] = widths[static_cast<size_t>(r)];
          blocks.push_back(of_rank(r, shape));
        }
        const Tensor got =
            axis.all_gather(blocks[static_cast<size_t>(axis.rank())], dim, widths, "test");
        EXPECT_TRUE(at::equal(got, at::cat(blocks, dim))) << "tp=" << tp << " dim=" << dim;
        EXPECT_TRUE(got.is_contiguous());
      }
    });
  }
}

TEST(Axis, ReduceScatter_GivesEachRankItsBlockOfTheSum) {
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      const Sizes widths = widths_for(tp);
      for (int64_t dim = 0; dim < 3; ++dim) {
        Sizes shape{2, 3, 4};
        shape[static_cast<size_t>(dim)] = 7;
        Tensor sum = at::zeros(shape, at::kDouble);
        for (int r = 0; r < tp; ++r) sum += of_rank(r, shape);
        const auto blocks = sum.split_with_sizes(widths, dim);
        const Tensor got = axis.reduce_scatter(of_rank(axis.rank(), shape), dim, widths, "test");
        EXPECT_TRUE(at::equal(got, blocks[static_cast<size_t>(axis.rank())]))
            << "tp=" << tp << " dim=" << dim;
      }
    });
  }
}

TEST(Axis, AllToAll_DeliversEachPartInItsOwnShape) {
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      // From rank a to rank b: shape [a, b + 1], so what rank 0 sends is empty.
      const auto part = [](int a, int b) { return of_rank(10 * a + b, {a, b + 1}); };
      std::vector<Tensor> parts;
      std::vector<Sizes> shapes;
      for (int r = 0; r < tp; ++r) {
        parts.push_back(part(axis.rank(), r));
        shapes.push_back({r, axis.rank() + 1});
      }
      const auto got = axis.all_to_all(parts, shapes, "test");
      ASSERT_EQ(got.size(), static_cast<size_t>(tp));
      for (int r = 0; r < tp; ++r) {
        EXPECT_TRUE(at::equal(got[static_cast<size_t>(r)], part(r, axis.rank())));
      }
    });
  }
}

TEST(Axis, Broadcast_OverwritesWithTheRootsTensor) {
  on_ranks(3, [](const Axis& axis) {
    Tensor t = of_rank(axis.rank(), {2, 3});
    axis.broadcast_(t, 2, "test");
    EXPECT_TRUE(at::equal(t, of_rank(2, {2, 3})));
    Tensor transposed = of_rank(axis.rank(), {2, 3}).t();
    EXPECT_EQ(test::thrown_by([&] { axis.broadcast_(transposed, 0, "test"); }).code(),
              Code::kUsage);
  });
}

TEST(Axis, WidthsThatDoNotFitTheTensor_AreRefusedBeforeAnyTraffic) {
  on_ranks(2, [](const Axis& axis) {
    const Tensor t = at::zeros({4, 3});
    const Sizes wrong{3, 3};
    const auto sizes_named = [](const Error& error) {
      return error.code() == Code::kShape &&
             std::string(error.what()).find('4') != std::string::npos;
    };
    EXPECT_TRUE(sizes_named(test::thrown_by([&] { (void)axis.all_gather(t, 0, wrong, "test"); })));
    EXPECT_TRUE(
        sizes_named(test::thrown_by([&] { (void)axis.reduce_scatter(t, 0, wrong, "test"); })));
    EXPECT_EQ(test::thrown_by([&] { (void)axis.all_gather(t, 0, Sizes{4}, "test"); }).code(),
              Code::kShape);
    EXPECT_EQ(test::thrown_by([&] {
                (void)axis.all_to_all({t}, {{4, 3}}, "test");
              }).code(),
              Code::kShape);
  });
}

TEST(Axis, ArgumentThatNeedsAGradient_IsRefusedOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [](const Axis& axis) {
      const Tensor t = at::ones({4}).requires_grad_() * 2;
      const Sizes widths = axis.size() == 1 ? Sizes{4} : Sizes{2, 2};
      const Sizes held = axis.size() == 1 ? Sizes{4} : Sizes{4, 4};
      const std::vector<Tensor> parts(static_cast<size_t>(axis.size()), t);
      const std::vector<Sizes> shapes(parts.size(), Sizes{4});
      const std::function<void()> calls[] = {
          [&] { (void)axis.all_reduce(t, "test"); },
          [&] { (void)axis.all_gather(t, 0, held, "test"); },
          [&] { (void)axis.reduce_scatter(t, 0, widths, "test"); },
          [&] { (void)axis.all_to_all(parts, shapes, "test"); }};
      for (const auto& call : calls) {
        const Error error = test::thrown_by(call);
        EXPECT_EQ(error.code(), Code::kUsage);
        EXPECT_NE(std::string(error.what()).find("give it t.detach()"), std::string::npos);
        const at::NoGradGuard no_grad;
        call();
      }
      EXPECT_EQ(axis.all_reduce(t.detach(), "test")[0].item<float>(),
                2.0F * static_cast<float>(axis.size()));
    });
  }
}

TEST(Axis, RanksWithDifferentShapes_StopWithBothNamed) {
  const Error error = test::thrown_by([] {
    on_ranks(2, [](const Axis& axis) {
      (void)axis.all_reduce(at::zeros({2, axis.rank() + 1}), "some.layer");
    });
  });
  EXPECT_EQ(error.code(), Code::kDesync);
  EXPECT_NE(std::string(error.what()).find("some.layer"), std::string::npos) << error.what();
}

/// Runs `act` as libtorch runs backward functions of device tensors: on a thread of this name, for
/// which the rank's own thread waits.
void on_backward_thread(const std::function<void()>& act) {
  std::thread([&] {
    c10::setThreadName("pt_autograd_0");
    act();
  }).join();
}

TEST(Axis, DeadlockAfterBackwardOnItsOwnThread_IsFoundLongBeforeTheTimeout) {
  const auto begin = std::chrono::steady_clock::now();
  const Error error = thrown_by([] {
    run_ranks(
        2,
        [](World& world) {
          const Axis first(world.group({0, 1}, "first")), second(world.group({0, 1}, "second"));
          first.barrier("forward");
          on_backward_thread([&] {
            first.barrier("backward");
            (void)first.all_reduce(at::ones({2}), "gradient");
          });
          (world.rank() == 0 ? first : second).barrier("end");
        },
        RankOptions{.timeout_s = 20, .flight_log_folder = ""});
  });
  EXPECT_EQ(error.code(), Code::kDesync) << error.what();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(ScalarType, EveryType_ComesBackAndOthersAreRefused) {
  for (const DType type : {DType::kF32, DType::kF64, DType::kBf16, DType::kF16, DType::kI64,
                           DType::kI32, DType::kI16, DType::kI8, DType::kU8, DType::kBool}) {
    EXPECT_EQ(dtype_of(scalar_type(type)), type);
    EXPECT_EQ(static_cast<size_t>(item_bytes(type)), at::elementSize(scalar_type(type)));
  }
  const Error error = test::thrown_by([] { (void)dtype_of(at::kComplexFloat); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_NE(std::string(error.what()).find("ComplexFloat"), std::string::npos);
}

}  // namespace
}  // namespace cleave::axis_test
