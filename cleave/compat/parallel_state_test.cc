#include "cleave/compat/parallel_state.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace cleave::parallel_state_test {
namespace {

using Groups = std::vector<std::vector<int>>;

// Oracle: the lists that NeuronX Distributed documents for a world of 8 with tp 2 and pp 2.
TEST(ParallelState, WorldOf8WithTp2AndPp2_HasTheDocumentedGroups) {
  run_ranks(8, [](World& world) {
    EXPECT_FALSE(model_parallel_is_initialized());
    initialize_model_parallel(world,
                              {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2});
    const int r = world.rank();
    EXPECT_EQ(get_tensor_model_parallel_group(as_list), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
    EXPECT_EQ(get_data_parallel_group(as_list), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
    EXPECT_EQ(get_pipeline_model_parallel_group(as_list), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
    EXPECT_EQ(get_tensor_model_parallel_rank(), r % 2);
    EXPECT_EQ(get_data_parallel_rank(), r / 2 % 2);
    EXPECT_EQ(get_pipeline_model_parallel_rank(), r / 4);
    EXPECT_EQ(get_tensor_parallel_size(), 2);
    EXPECT_EQ(get_data_parallel_world_size(), 2);
    EXPECT_EQ(get_pipeline_model_parallel_size(), 2);
    EXPECT_EQ(get_tensor_model_parallel_src_rank(), r / 2 * 2);
    EXPECT_EQ(get_data_parallel_src_rank(), r / 4 * 4 + r % 2);
    EXPECT_EQ(get_pipeline_model_parallel_next_rank(), (r + 4) % 8);
    EXPECT_EQ(get_pipeline_model_parallel_prev_rank(), (r + 4) % 8);
    EXPECT_EQ(tp_rank(), r % 2);
    EXPECT_EQ(tp_degree(), 2);
    EXPECT_TRUE(tp_grp() == get_tensor_model_parallel_group());
    EXPECT_TRUE(dp_grp() == get_data_parallel_group());
    destroy_model_parallel();
    EXPECT_FALSE(model_parallel_is_initialized());
    initialize_model_parallel(world, {.tensor_model_parallel_size = 4});
    EXPECT_EQ(get_data_parallel_size(), 2);
    destroy_model_parallel();
  });
}

TEST(ParallelState, MisuseOrSizesThatDoNotDivide_AreErrors) {
  EXPECT_EQ(test::thrown_by([] { get_data_parallel_rank(); }).code(), Code::kUsage);
  run_ranks(3, [](World& world) {
    const Error error = test::thrown_by(
        [&] { initialize_model_parallel(world, {.tensor_model_parallel_size = 2}); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("world size 3"), std::string::npos);
  });
  EXPECT_EQ(divide(12, 4), 3);
  EXPECT_EQ(test::thrown_by([] { divide(12, 5); }).code(), Code::kShape);
}

}  // namespace
}  // namespace cleave::parallel_state_test
