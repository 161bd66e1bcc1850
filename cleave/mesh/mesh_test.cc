#include "cleave/mesh/mesh.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace cleave::mesh_test {
namespace {

using Groups = std::vector<std::vector<int>>;
using test::thrown_by;

void on_world(int num_ranks, const std::function<void(World&)>& body) {
  run_ranks(num_ranks, body, RankOptions{.timeout_s = 20, .flight_log_folder = ""});
}

// Oracle: NxD's documented layout of 8 ranks with tp 2 and pp 2, [PP, DP, TP] row-major.
TEST(Mesh, EightRanks_HaveMegatronsGroups) {
  on_world(8, [](World& world) {
    const Mesh mesh = Mesh::build(world, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
    EXPECT_EQ(mesh.groups("tp"), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
    EXPECT_EQ(mesh.groups("dp"), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
    EXPECT_EQ(mesh.groups("pp"), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
    const int r = world.rank();
    EXPECT_EQ(mesh.coordinate(), (std::vector<int>{r / 4, r / 2 % 2, r % 2}));
    EXPECT_EQ(mesh["tp"].ranks(), (std::vector<int>{r - r % 2, r - r % 2 + 1}));
    EXPECT_EQ(mesh["dp"].rank(), r / 2 % 2);
    EXPECT_EQ(mesh["pp"].name(), "pp");
    EXPECT_EQ(mesh.size(), 8);
    EXPECT_EQ(mesh.describe(), "pp=2 x dp=2 x tp=2");
  });
}

TEST(Mesh, SixRanksOfUnequalSizes_SumAlongEachAxisAlone) {
  on_world(6, [](World& world) {
    const Mesh mesh = Mesh::build(world, {{"dp", 2}, {"tp", 3}});
    const Tensor rank = at::scalar_tensor(world.rank(), at::kDouble);
    // Rows of the mesh are ranks 0 1 2 and 3 4 5, columns 0 3, 1 4 and 2 5.
    const double row = world.rank() < 3 ? 3 : 12;
    const double column = 2 * (world.rank() % 3) + 3;
    EXPECT_EQ(mesh["tp"].all_reduce(rank, "test").item<double>(), row);
    EXPECT_EQ(mesh["dp"].all_reduce(rank, "test").item<double>(), column);
    EXPECT_EQ(mesh["dp"].all_reduce(rank, "test", ReduceOp::kMax).item<double>(),
              world.rank() % 3 + 3);
  });
}

TEST(Mesh, Slice_KeepsTheRanksThatShareTheOtherCoordinates) {
  on_world(8, [](World& world) {
    const Mesh mesh = Mesh::build(world, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
    const int r = world.rank();
    const Mesh outer = mesh.slice({"pp", "tp"});  // ranks of one dp coordinate
    const int dp = r / 2 % 2;
    EXPECT_EQ(outer.size(), 4);
    EXPECT_EQ(outer.describe(), "pp=2 x tp=2");
    EXPECT_EQ(outer.groups("tp"), (Groups{{2 * dp, 2 * dp + 1}, {4 + 2 * dp, 5 + 2 * dp}}));
    EXPECT_EQ(outer.groups("pp"), (Groups{{2 * dp, 4 + 2 * dp}, {1 + 2 * dp, 5 + 2 * dp}}));
    EXPECT_EQ(outer.coordinate(), (std::vector<int>{r / 4, r % 2}));
    EXPECT_EQ(outer["tp"], mesh["tp"]);  // the same group, not another of the same ranks
    const Mesh one = mesh.slice({"dp"});
    EXPECT_EQ(one.groups("dp"), (Groups{mesh["dp"].ranks()}));
    EXPECT_EQ(mesh.slice({"pp", "dp", "tp"}).groups("dp"), mesh.groups("dp"));
  });
}

TEST(Mesh, Flatten_IsOneAxisOverTheSubMeshInOrder) {
  on_world(8, [](World& world) {
    const Mesh mesh = init_device_mesh(world, {2, 2, 2}, {"pp", "dp", "tp"});
    const int d = mesh["dp"].rank();
    const Axis both = mesh.flatten(world, {"pp", "tp"}, "pp_tp");
    EXPECT_EQ(both.ranks(), (std::vector<int>{2 * d, 2 * d + 1, 4 + 2 * d, 5 + 2 * d}));
    EXPECT_EQ(both.name(), "pp_tp");
    const Tensor sum = both.all_reduce(at::scalar_tensor(world.rank(), at::kDouble), "test");
    EXPECT_EQ(sum.item<double>(), 10 + 8 * d);
    EXPECT_EQ(thrown_by([&] {
                (void)mesh.flatten(world, {"tp", "pp"}, "x");
              }).code(),
              Code::kUsage);
    EXPECT_EQ(thrown_by([&] {
                (void)init_device_mesh(world, {8}, {"dp", "tp"});
              }).code(),
              Code::kUsage);
  });
}

TEST(Mesh, WithoutAWorld_HasAxesOfOneRank) {
  const Mesh mesh = Mesh::single({"dp", "tp"});
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.coordinate(), (std::vector<int>{0, 0}));
  EXPECT_EQ(mesh.groups("tp"), (Groups{{0}}));
  EXPECT_EQ(mesh["tp"].size(), 1);
  const Tensor t = at::arange(6).view({2, 3});
  EXPECT_TRUE(at::equal(mesh["tp"].all_reduce(t, "test"), t));
  EXPECT_TRUE(at::equal(mesh["tp"].all_gather(t, 1, std::vector<int64_t>{3}, "test"), t));
  EXPECT_TRUE(at::equal(mesh["tp"].reduce_scatter(t, 0, std::vector<int64_t>{2}, "test"), t));
  EXPECT_TRUE(at::equal(mesh["tp"].all_to_all({t}, {{2, 3}}, "test")[0], t));
}

TEST(Mesh, WrongSizesAndNames_AreRefusedWithWhatWouldBeRight) {
  on_world(4, [](World& world) {
    const Error count = thrown_by([&] { Mesh::build(world, {{"dp", 3}, {"tp", 2}}); });
    EXPECT_EQ(count.code(), Code::kShape);
    EXPECT_STREQ(count.what(), "a mesh of dp=3 x tp=2 needs 6 ranks; the world has 4");
    const Error duplicate = thrown_by([&] { Mesh::build(world, {{"tp", 2}, {"tp", 2}}); });
    EXPECT_EQ(duplicate.code(), Code::kUsage);
    EXPECT_STREQ(duplicate.what(), "mesh dimension 'tp' is named twice");
    const Error zero = thrown_by([&] { Mesh::build(world, {{"dp", 0}, {"tp", 4}}); });
    EXPECT_EQ(zero.code(), Code::kUsage);
    EXPECT_STREQ(zero.what(), "dp=0; a mesh dimension has at least 1 rank");

    const Mesh mesh = Mesh::build(world, {{"dp", 2}, {"tp", 2}});
    const Error unknown = thrown_by([&] { (void)mesh["cp"]; });
    EXPECT_EQ(unknown.code(), Code::kUsage);
    EXPECT_NE(std::string(unknown.what()).find("no axis 'cp'; it has dp, tp"), std::string::npos);
    EXPECT_EQ(thrown_by([&] { (void)mesh.slice({"tp", "dp"}); }).code(), Code::kUsage);
    EXPECT_EQ(thrown_by([&] { (void)mesh.slice({"tp", "tp"}); }).code(), Code::kUsage);
  });
}

}  // namespace
}  // namespace cleave::mesh_test
