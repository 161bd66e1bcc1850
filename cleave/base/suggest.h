#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

/// Smallest number of inserted, removed or changed bytes that turns `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

/// The `count` names (or fewer) with the smallest edit distance to `name`, nearest first; equal
/// ones stay in the order of `names`. Empty names, which nobody can mean, are left out.
std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> names,
                                       size_t count = 3);

/// The nearest name where it may have been meant: no more than half of its bytes are others.
std::optional<std::string> likely_name(std::string_view name, std::span<const std::string> names);

/// End of an "unknown name" message: "; did you mean 'a', 'b' or 'c'"; empty without names.
std::string did_you_mean(std::string_view name, std::span<const std::string> names);

}  // namespace cleave
