#pragma once
#include <cstdint>
#include <string>

#include "cleave/mesh/mesh.h"

namespace cleave::inline mesh {

/// Where a rank of the mesh is: "rank 3 (dp 1, tp 1)". Dims of size 1 are omitted, except for the
/// last two.
std::string place_text(const Mesh& mesh, int64_t rank);

}  // namespace cleave::inline mesh
