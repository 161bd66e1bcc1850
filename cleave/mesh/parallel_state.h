#pragma once
#include <vector>

#include "cleave/mesh/mesh.h"

namespace cleave {

/// Names that users of NeuronX Distributed and Megatron know, thin over one Mesh of axes pp, dp, tp
/// (tp contiguous). A rank's state is its thread's: call initialize_model_parallel in the rank's
/// body. New code passes a Mesh instead.
struct ModelParallelSizes {
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
};

/// Builds this rank's groups; the data-parallel size is what is left of the world. Throws
/// Error(kShape) when the sizes do not divide the world, Error(kUsage) when it was done already.
void initialize_model_parallel(World& world, const ModelParallelSizes& sizes = {});
bool model_parallel_is_initialized();
/// Back to nothing; may be initialised again.
void destroy_model_parallel();

/// Asks a group getter for every group of that kind, as lists of world ranks.
struct AsList {};
inline constexpr AsList as_list{};  // NOLINT(readability-identifier-naming): NxD's name

// Each throws Error(kUsage) before initialize_model_parallel. A group is the mesh's own Axis.
/// The tensor-parallel axis.
const Axis& get_tensor_model_parallel_group();
std::vector<std::vector<int>> get_tensor_model_parallel_group(AsList);
int get_tensor_model_parallel_size();
int get_tensor_model_parallel_rank();
int get_tensor_model_parallel_src_rank();

/// The data-parallel axis.
const Axis& get_data_parallel_group();
std::vector<std::vector<int>> get_data_parallel_group(AsList);
int get_data_parallel_size();
int get_data_parallel_rank();
int get_data_parallel_src_rank();

/// The pipeline axis; next and previous wrap around.
const Axis& get_pipeline_model_parallel_group();
std::vector<std::vector<int>> get_pipeline_model_parallel_group(AsList);
int get_pipeline_model_parallel_size();
int get_pipeline_model_parallel_rank();
int get_pipeline_model_parallel_next_rank();
int get_pipeline_model_parallel_prev_rank();

/// All ranks of the world.
const Axis& get_world_group();

/// The developer guide's names for the same.
int get_tensor_parallel_size();
int get_data_parallel_world_size();

/// The notebook's names for the same.
int tp_rank();
int tp_degree();
const Axis& tp_grp();
const Axis& dp_grp();

/// a / b. Throws Error(kShape) with both numbers when b does not divide a.
int64_t divide(int64_t a, int64_t b);

}  // namespace cleave
