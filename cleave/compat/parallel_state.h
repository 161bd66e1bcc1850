#pragma once
#include <vector>

#include "cleave/mesh/mesh.h"

namespace cleave::inline compat {

/// The parallel state API of NeuronX Distributed and Megatron, implemented by one Mesh with axes
/// pp, dp, tp (tp contiguous). The state is per rank thread: call initialize_model_parallel in the
/// rank's body. New code passes a Mesh instead.
struct ModelParallelSizes {
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
};

/// Builds this rank's groups. The data-parallel size is world size / (tp * pp). Throws
/// Error(kShape) when tp * pp does not divide the world size, Error(kUsage) when already
/// initialized.
void initialize_model_parallel(World& world, const ModelParallelSizes& sizes = {});
bool model_parallel_is_initialized();
/// Drops all groups; initialize_model_parallel may be called again.
void destroy_model_parallel();

/// Tag: a group getter returns all groups of its kind as lists of world ranks.
struct AsList {};
inline constexpr AsList as_list{};  // NOLINT(readability-identifier-naming): NxD's name

// All getters throw Error(kUsage) before initialize_model_parallel. A group is an Axis of the mesh.
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

/// The pipeline axis; the next rank of the last one is the first, and the reverse.
const Axis& get_pipeline_model_parallel_group();
std::vector<std::vector<int>> get_pipeline_model_parallel_group(AsList);
int get_pipeline_model_parallel_size();
int get_pipeline_model_parallel_rank();
int get_pipeline_model_parallel_next_rank();
int get_pipeline_model_parallel_prev_rank();

/// All ranks of the world.
const Axis& get_world_group();

/// Aliases with the names of NeuronX Distributed's developer guide.
int get_tensor_parallel_size();
int get_data_parallel_world_size();

/// Aliases with the names of the course's notebook.
int tp_rank();
int tp_degree();
const Axis& tp_grp();
const Axis& dp_grp();

/// a / b. Throws Error(kShape) with both numbers when b does not divide a.
int64_t divide(int64_t a, int64_t b);

}  // namespace cleave::inline compat
