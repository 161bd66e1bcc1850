#pragma once
#include <string>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/nn/layer.h"

namespace cleave {

/// Layers that are called one after the other, cut into stages: stage s has the Layers whose places
/// in the list are in the s-th range. Every stage has at least one.
using Stages = std::vector<Range>;

/// Places in the list of a model's blocks: the Layers of the type that occurs most often (of those
/// that occur equally often, the one that comes last).
std::vector<size_t> blocks_of(const std::vector<Layer*>& sequence);

/// Cuts by names: each cut is the path of the last Layer of a stage, in any order; plans' aliases
/// are taken too. The end of the list is no cut.
///
/// Throws Error(kShape) when there are not exactly num_stages - 1 cuts, for a name that is not in
/// the list (naming the nearest), for a cut that occurs twice, and for the last Layer.
Stages stages_from_cuts(const std::vector<Layer*>& sequence, const std::vector<std::string>& cuts,
                        int num_stages);

/// The rule of NxD's auto partition: every stage gets L / P of the L blocks, the remainder goes one
/// each to the last stages. What stands before the first block is in the first stage, what stands
/// after the last one in the last. Throws Error(kShape) for fewer blocks than stages.
Stages even_stages(const std::vector<Layer*>& sequence, const std::vector<size_t>& blocks,
                   int num_stages);

/// Contiguous stages whose slowest is as fast as can be, by what each Layer costs (in any unit).
/// Throws Error(kShape) for fewer Layers than stages.
Stages balanced_stages(const std::vector<double>& costs, int num_stages);

/// What each Layer costs per token of training, in floating point operations: 6 for each element of
/// a matrix that the token is multiplied with. A look-up in a table is nearly free; a head over the
/// vocabulary is not, also when it is the table. `per_block` is added to each block, for what has
/// no weights: attention's two products, 6 * hidden * seq_len where it is causal.
std::vector<double> layer_costs(const std::vector<Layer*>& sequence, double per_block = 0);

/// Cost of the most expensive stage.
double slowest_stage(const std::vector<double>& costs, const Stages& stages);

}  // namespace cleave
