#pragma once
#include <string>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/nn/layer.h"

namespace cleave::inline pipeline {

/// A list of Layers, divided into stages: stage s has the Layers whose indices are in the s-th
/// range. Every stage has at least one.
using Stages = std::vector<Range>;

/// Indices of a model's blocks, ascending: the Layers of the most frequent type. Of equally
/// frequent types, the one that contains more layers counts, then the last. Another type is one of
/// blocks too if it occurs more than once, contains layers but no Embedding, and all its Layers
/// come before the last of those blocks, or are neighbours and not the end of the model. So an
/// encoder and a decoder may have blocks of two types.
std::vector<size_t> blocks_of(const std::vector<Layer*>& sequence);

/// Stages by names: each cut is the path of the last Layer of a stage, in any order; aliases of
/// plans work too. The end of the list is not a cut.
///
/// Throws Error(kShape) unless there are exactly num_stages - 1 cuts, for a name that is not in the
/// list (naming the nearest), for a cut that occurs twice, and for the last Layer.
Stages stages_from_cuts(const std::vector<Layer*>& sequence, const std::vector<std::string>& cuts,
                        int num_stages);

/// The rule of NxD's auto partition: each of the P stages gets L / P of the L blocks, and the last
/// stages get one of the remainder each. Layers before the first block are in the first stage,
/// layers after the last block in the last stage. Throws Error(kShape) for fewer blocks than
/// stages.
Stages even_stages(const std::vector<Layer*>& sequence, const std::vector<size_t>& blocks,
                   int num_stages);

/// Contiguous stages with the smallest possible cost of the slowest stage. `costs`: of each Layer,
/// in any unit. Throws Error(kShape) for fewer Layers than stages.
Stages balanced_stages(const std::vector<double>& costs, int num_stages);

/// The cost of each Layer per token of training, in floating point operations: 6 for each element
/// of a matrix that the token is multiplied with. An embedding lookup is nearly free; a head over
/// the vocabulary is not, even if its matrix is the embedding's. The products of attention, which
/// have no weights, do not count.
std::vector<double> layer_costs(const std::vector<Layer*>& sequence);

}  // namespace cleave::inline pipeline
