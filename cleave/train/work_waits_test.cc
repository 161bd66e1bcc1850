#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/mesh/work.h"
#include "tests/support/host_device.h"
#include "tests/support/train_grid.h"

// Training on a device whose collectives move data as late as they may: everything that they read
// and write must stay as it is until their wait(). Oracle: the same layout on the CPU, bit for bit.
namespace cleave::work_waits_test {
namespace {

using test::Point;

struct Numbers {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> weights;  // of rank 0
};

Numbers train(const test::GridCase& c, const Point& point, bool is_late) {
  Numbers out;
  test::on_world(point.num_ranks(), [&](World& world) {
    if (is_late) world.use_device(std::make_shared<test::LateDevice>());
    test::GridRunner run(c, point, world, at::kFloat);
    run.start();
    for (int64_t step = 0; step < test::kGridSteps; ++step) {
      const auto [loss, norm] = run.gradients(step);
      run.apply();
      if (world.rank() != 0) continue;
      out.losses.push_back(loss);
      out.norms.push_back(norm);
    }
    if (world.rank() != 0) return;
    for (const auto& p : run.rank().parameters()) {
      out.weights[p->name()] = p->leaf().detach().clone();
    }
  });
  return out;
}

void expect_same_training(const test::GridCase& c, const Point& point) {
  SCOPED_TRACE(testing::PrintToString(point.values()) + " " + c.describe());
  const Numbers want = train(c, point, /*is_late=*/false);
  const Numbers got = train(c, point, /*is_late=*/true);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (const auto& [name, weight] : want.weights) {
    EXPECT_TRUE(at::equal(got.weights.at(name), weight)) << name;
  }
}

TEST(LateDevice, Training_HasTheBitsOfTheCpu) {
  for (const Point& point : std::vector<Point>{{.dp = 2},
                                               {.dp = 2, .sharding = 1},
                                               {.dp = 3, .sharding = 2},
                                               {.tp = 2, .sp = 1},
                                               {.tp = 2, .sp = 1, .dp = 2, .sharding = 2},
                                               {.pp = 2, .dp = 2, .sharding = 1}}) {
    expect_same_training({.family = "llama"}, point);
  }
  expect_same_training({.family = "mixtral"}, {.dp = 2, .sharding = 2, .ep = 2});
}

// As the gather of a layer that is prefetched but not called.
TEST(LateDevice, WorkThatIsDropped_EndsBeforeItsMemoryIsFreed) {
  run_ranks(2, [](World& world) {
    world.use_device(std::make_shared<test::LateDevice>());
    const Axis axis(world.group({0, 1}, "dp"));
    const Tensor sum = at::ones({1000});
    { const Work dropped = start_all_reduce(axis, sum, "dropped"); }
    EXPECT_TRUE(at::equal(sum, at::full({1000}, 2.0)));
  });
}

TEST(LateDevice, Collective_RunsInItsWait) {
  run_ranks(2, [](World& world) {
    world.use_device(std::make_shared<test::LateDevice>());
    const Axis axis(world.group({0, 1}, "dp"));
    const std::vector<int64_t> widths{3, 2};
    const Tensor mine = at::full({widths[static_cast<size_t>(axis.rank())]}, 1.0 + axis.rank());
    const Tensor sum = at::ones({4});
    Work summed = start_all_reduce(axis, sum, "sum");
    Work gathered = start_all_gather(axis, mine, widths, "gather");
    EXPECT_TRUE(at::equal(sum, at::ones({4})));  // otherwise the tests here prove nothing
    EXPECT_TRUE(gathered.is_pending());
    EXPECT_TRUE(at::equal(gathered.wait(), at::tensor({1.0F, 1.0F, 1.0F, 2.0F, 2.0F})));
    EXPECT_TRUE(at::equal(summed.wait(), at::full({4}, 2.0)));
  });
}

}  // namespace
}  // namespace cleave::work_waits_test
