#pragma once
#include <string>
#include <vector>

#include "cleave/verify/part.h"

namespace cleave::verifying {

/// Notes on the costs of a plan: layer boundaries that gather or shard all features of the input,
/// with the bytes moved; and matrices that are not sharded.
std::vector<std::string> notes_on(const std::vector<Part>& parts,
                                  const std::vector<PartBytes>& bytes, Model& model);

}  // namespace cleave::verifying
