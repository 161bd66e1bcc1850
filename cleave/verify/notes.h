#pragma once
#include <string>
#include <vector>

#include "cleave/verify/part.h"

namespace cleave::verifying {

/// From what calls moved in all to what they moved without the calls inside them. A part's place in
/// the list is after those inside it.
void take_away_children(const std::vector<Part>& parts, std::vector<PartBytes>& bytes);

/// What a plan leaves to be repaired at doors: features that are gathered or cut where a Layer's
/// input comes in, and what that moves; matrices that every rank holds whole. Own bytes of a call.
std::vector<std::string> notes_on(const std::vector<Part>& parts,
                                  const std::vector<PartBytes>& bytes, Model& model);

}  // namespace cleave::verifying
