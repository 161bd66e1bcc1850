#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::inline base {

/// Levenshtein distance in bytes.
size_t edit_distance(std::string_view a, std::string_view b);

/// Up to `count` names with the smallest edit distance to `name`, nearest first; ties keep the
/// order of `names`. Empty names are skipped.
std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> names,
                                       size_t count = 3);

/// The nearest name, if its edit distance is at most 2/5 of the longer name; else the only name
/// that begins with `name`, if that has three letters or more; else nullopt.
std::optional<std::string> likely_name(std::string_view name, std::span<const std::string> names);

/// The end of an "unknown name" message: "; did you mean 'a', 'b' or 'c'"; empty if `names` is.
std::string did_you_mean(std::string_view name, std::span<const std::string> names);

}  // namespace cleave::inline base
