#pragma once
#include <optional>
#include <string>
#include <vector>

namespace cleave::inline file {

/// A file and its weight in a mix of several.
struct WeightedPath {
  std::string path;
  std::optional<double> weight{};  ///< above 0 and finite; nullopt if none was given
};

/// Reads "FILE" or "FILE:WEIGHT". The name of an existing file is never divided, whatever it holds
/// behind a colon. Throws Error(kUsage) for a weight that is not above 0.
WeightedPath weighted_path(const std::string& text);

/// The same of each. Throws Error(kUsage) if some have a weight and others do not.
std::vector<WeightedPath> weighted_paths(const std::vector<std::string>& texts);

}  // namespace cleave::inline file
