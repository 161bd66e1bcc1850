#include "cleave/parallel/pattern.h"

#include <algorithm>

namespace cleave {

bool matches_any(std::string_view pattern, const std::vector<std::string>& paths) {
  return std::any_of(paths.begin(), paths.end(),
                     [&](const std::string& path) { return matches(pattern, path); });
}

bool matches(std::string_view pattern, std::string_view path) {
  while (!pattern.empty()) {
    if (pattern.front() == '{') {
      const size_t close = pattern.find('}');
      if (close == std::string_view::npos) return false;
      const std::string_view rest = pattern.substr(close + 1);
      std::string_view choices = pattern.substr(1, close - 1);
      for (;;) {
        const size_t comma = choices.find(',');
        if (matches(std::string(choices.substr(0, comma)) + std::string(rest), path)) return true;
        if (comma == std::string_view::npos) return false;
        choices.remove_prefix(comma + 1);
      }
    }
    if (pattern.front() == '*') {
      pattern.remove_prefix(1);
      for (size_t taken = 0;; ++taken) {
        if (matches(pattern, path.substr(taken))) return true;
        if (taken == path.size() || path[taken] == '.') return false;
      }
    }
    if (path.empty() || path.front() != pattern.front()) return false;
    pattern.remove_prefix(1);
    path.remove_prefix(1);
  }
  return path.empty();
}

}  // namespace cleave
