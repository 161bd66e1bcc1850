#pragma once
#include <string>

namespace cleave {

/// How a message about the layer at `path` begins: "path: ", or "" for the root of a tree, which
/// has no path.
inline std::string subject(const std::string& path) {
  return path.empty() ? "" : path + ": ";
}

}  // namespace cleave
