#pragma once
#include <string>

#include "cleave/verify/verify.h"

namespace cleave {

/// A table of Layers (largest distances, "!" where one is beyond its bound), the whole step, notes,
/// and as last line whether all agree or the first Layer that differs and by how much.
std::string report_text(const VerifyReport& report);

/// The last line of the text.
std::string verdict(const VerifyReport& report);

/// All values as a JSON object: {"model", "tp", "dp", ..., "agrees", "first_difference", "parts",
/// "notes"}. A distance that is not finite is null.
std::string report_json(const VerifyReport& report, const std::string& model);

}  // namespace cleave
