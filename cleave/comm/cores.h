#pragma once
#include <vector>

namespace cleave {

/// The processors that the calling thread may run on; those that share a core lie side by side.
std::vector<int> usable_processors();

/// Keeps the calling thread, and the threads that it starts later, on its own equal share of the
/// processors that it may use: rank 0 on the first ones, and so on. `rank` counts the ranks of this
/// host. Does nothing, and returns false, when a share would be less than `threads_per_rank`.
///
/// A launcher that has bound each rank to processors of its own leaves too few to share: then they
/// stay as they are.
bool keep_to_own_processors(int rank, int num_ranks, int threads_per_rank);

/// Keeps the calling thread, and the threads and programs that it starts later, on one processor.
/// Throws Error(kUsage) when it may not run there.
void keep_to_processor(int processor);

}  // namespace cleave
