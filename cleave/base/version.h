#pragma once
#include <string_view>

namespace cleave {

/// The library's version, "major.minor.patch"; the build file's project() is its one source.
std::string_view version();

}  // namespace cleave
