#include "cleave/mesh/work.h"

#include <gtest/gtest.h>

#include "cleave/mesh/dry_axis.h"
#include "tests/support/counting_group.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: the synchronous collectives of Axis, bit for bit, on another axis of the same ranks.
namespace cleave::work_test {
namespace {

using test::numbers;

/// Runs `body` on rank threads with two axes of the same ranks.
void on_two_axes(int num_ranks, const std::function<void(const Axis&, const Axis&)>& body) {
  run_ranks(
      num_ranks,
      [&](World& world) {
        const Mesh a = Mesh::build(world, {{"a", num_ranks}});
        const Mesh b = Mesh::build(world, {{"b", num_ranks}});
        body(a["a"], b["b"]);
      },
      RankOptions{.timeout_s = 20, .flight_log_folder = ""});
}

TEST(Work, AsyncCollectives_GiveTheSameBitsAsSyncOnes) {
  for (const int n : {1, 2, 3}) {
    on_two_axes(n, [n](const Axis& async, const Axis& own) {
      const auto seed = static_cast<uint64_t>(own.rank());
      for (const int64_t count : {12, 60000}) {
        for (const auto type : {at::kFloat, at::kBFloat16}) {
          std::vector<int64_t> widths(static_cast<size_t>(n), count / n);
          const Tensor whole = numbers({count}, seed).to(type);
          const Tensor part = numbers({count / n}, 7 + seed).to(type);
          const Tensor summed = whole.clone();
          Work sum = start_all_reduce(async, summed, "sum");
          Work scattered = start_reduce_scatter(async, whole, widths, "scatter");
          Work gathered = start_all_gather(async, part, widths, "gather");
          // Meanwhile the rank uses another axis.
          const Tensor want = own.all_reduce(whole, "sum");
          EXPECT_TRUE(at::equal(gathered.wait(), own.all_gather(part, 0, widths, "gather")));
          EXPECT_TRUE(at::equal(sum.wait(), want));
          EXPECT_TRUE(at::equal(summed, want)) << "not in place";
          EXPECT_TRUE(at::equal(scattered.wait(), own.reduce_scatter(whole, 0, widths, "scatter")));
          EXPECT_FALSE(sum.is_pending());
        }
      }
    });
  }
}

TEST(Work, SyncCallOfTheSameAxis_RunsAfterEarlierAsyncOnes) {
  test::on_ranks(2, [](const Axis& axis) {
    for (int round = 0; round < 10; ++round) {
      const Tensor t = numbers({1000}, static_cast<uint64_t>(axis.rank()));
      const Tensor want = numbers({1000}, 0) + numbers({1000}, 1);
      Work work = start_all_reduce(axis, t, "first");
      axis.barrier("second");
      EXPECT_TRUE(at::equal(t, want));  // before wait()
      EXPECT_TRUE(at::equal(work.wait(), want));
    }
  });
}

TEST(Work, FailedCollective_ThrowsFromWait) {
  const Error error = test::thrown_by([] {
    on_two_axes(2, [](const Axis& async, const Axis& own) {
      Work work = start_all_reduce(async, at::ones({own.rank() == 0 ? 3 : 4}), "gradients");
      const Error here = test::thrown_by([&] { (void)work.wait(); });
      EXPECT_EQ(here.code(), Code::kDesync);
      throw Error(here);
    });
  });
  EXPECT_EQ(error.code(), Code::kDesync) << error.what();
}

TEST(Work, GroupsWithoutAsyncSupport_RunImmediatelyAndAreCounted) {
  const Axis dry = dry_axis("dp", 0, 2);
  const Tensor shape = at::empty({10}, at::dtype(at::kFloat).device(at::kMeta));
  Work work = start_all_reduce(dry, shape, "dry");
  EXPECT_EQ(sum_of(dry_calls(dry)).bytes, 40);
  EXPECT_TRUE(work.wait().is_same(shape));
  test::on_ranks(2, [](const Axis& axis) {
    const auto counting = std::make_shared<test::CountingGroup>(axis.group());
    Work sum = start_all_reduce(Axis(counting), at::ones({3}), "counted");
    EXPECT_EQ(counting->taken()["all_reduce"], 1);
    EXPECT_TRUE(at::equal(sum.wait(), at::full({3}, 2.0)));
  });
}

TEST(Work, TensorsOfTheWrongShapeOrStrides_AreRefused) {
  const std::vector<int64_t> widths{2};
  EXPECT_EQ(test::thrown_by([&] {
              (void)start_all_gather(Axis(), at::ones({3}), widths, "gather");
            }).code(),
            Code::kShape);
  EXPECT_EQ(test::thrown_by([&] {
              (void)start_all_reduce(Axis(), at::ones({3, 2}).t(), "sum");
            }).code(),
            Code::kUsage);
}

// Oracle: Axis, which checks the same.
TEST(Work, WidthsOfOtherRanks_AreRefused) {
  test::on_ranks(2, [](const Axis& axis) {
    for (const std::vector<int64_t>& widths : {std::vector<int64_t>{3}, {1, 1, 1}, {}}) {
      const Tensor t = at::ones({3});
      const Error of_axis = test::thrown_by([&] { (void)axis.all_gather(t, 0, widths, "shards"); });
      for (const Error& error :
           {test::thrown_by([&] { (void)start_all_gather(axis, t, widths, "shards"); }),
            test::thrown_by([&] { (void)start_reduce_scatter(axis, t, widths, "shards"); })}) {
        EXPECT_EQ(error.code(), Code::kShape);
        EXPECT_STREQ(error.what(), of_axis.what());
      }
    }
  });
}

}  // namespace
}  // namespace cleave::work_test
