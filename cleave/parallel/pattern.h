#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

/// Whether a dotted pattern matches one of the paths, token by token: * stands for any characters
/// within a token, {a,b} for one of its alternatives.
bool matches_any(std::string_view pattern, const std::vector<std::string>& paths);
bool matches(std::string_view pattern, std::string_view path);

}  // namespace cleave
