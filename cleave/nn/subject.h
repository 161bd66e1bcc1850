#pragma once
#include <string>

namespace cleave::inline nn {

/// Prefix of a message about the layer at `path`: "path: ", or "" for the root, which has no path.
inline std::string subject(const std::string& path) {
  return path.empty() ? "" : path + ": ";
}

/// The layer at `path` inside a sentence.
inline std::string layer_name(const std::string& path) {
  return path.empty() ? "the root layer" : path;
}

}  // namespace cleave::inline nn
