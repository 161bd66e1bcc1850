#pragma once
#include <string>
#include <vector>

#include "cleave/verify/part.h"

namespace cleave::verifying {

/// What a plan leaves to be repaired at doors: features that are gathered or cut where a Layer's
/// input comes in, and what that moves; matrices that every rank holds whole.
std::vector<std::string> notes_on(const std::vector<Part>& parts,
                                  const std::vector<PartBytes>& bytes, Model& model);

}  // namespace cleave::verifying
