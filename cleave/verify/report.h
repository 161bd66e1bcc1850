#pragma once
#include <string>

#include "cleave/verify/verify.h"

namespace cleave {

/// A table of layers (largest distances; "!" marks one beyond its bound), a table of the whole
/// step, notes, and the verdict.
std::string report_text(const VerifyReport& report);

/// The last line of the text: that all values agree, or the first part that differs and by how
/// much.
std::string verdict(const VerifyReport& report);

/// All values as a JSON object: {"model", "tp", "dp", ..., "agrees", "first_difference", "parts",
/// "notes"}. A distance that is not finite is null.
std::string report_json(const VerifyReport& report, const std::string& model);

}  // namespace cleave
