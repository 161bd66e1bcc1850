#pragma once
#include <string>

#include "cleave/planner/forecast.h"

namespace cleave::inline planner {

/// Prints the dry run of rank `rank`: its coordinates, layers, memory, and what it sends in a step
/// by axis and kind of collective.
void print_rank_program(const RankProgram& program, const ParallelConfig& layout,
                        const StepShape& step, int rank);

/// Prints each parameter of the rank: the elements that it holds, the shape that forward reads, and
/// the name.
void print_rank_parameters(const RankProgram& program);

/// The same as one line of JSON.
std::string rank_program_json(const RankProgram& program, const ParallelConfig& layout,
                              const StepShape& step, int rank);

}  // namespace cleave::inline planner
