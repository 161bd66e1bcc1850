#pragma once
#include <string_view>

namespace cleave::inline base {

/// The library's version, "major.minor.patch", from project() in CMakeLists.txt.
std::string_view version();

}  // namespace cleave::inline base
