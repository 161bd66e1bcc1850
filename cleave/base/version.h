#pragma once
#include <string_view>

namespace cleave {

/// Version of the library that is loaded, "MAJOR.MINOR.PATCH".
std::string_view version();

}  // namespace cleave
