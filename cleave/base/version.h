#pragma once
#include <string_view>

namespace cleave {

/// The library's version, "major.minor.patch", from project() in CMakeLists.txt.
std::string_view version();

}  // namespace cleave
