#include <algorithm>

#include "cleave/parallel/plan.h"

namespace cleave::inline parallel {

bool matches_any(std::string_view pattern, const std::vector<std::string>& paths) {
  return std::any_of(paths.begin(), paths.end(),
                     [&](const std::string& path) { return matches(pattern, path); });
}

namespace {

/// `pattern` begins with '{': one of the alternatives, and then the rest.
bool matches_choice(std::string_view pattern, std::string_view path) {
  const size_t close = pattern.find('}');
  if (close == std::string_view::npos) return false;
  const std::string rest(pattern.substr(close + 1));
  std::string_view choices = pattern.substr(1, close - 1);
  for (;;) {
    const size_t comma = choices.find(',');
    if (matches(std::string(choices.substr(0, comma)) + rest, path)) return true;
    if (comma == std::string_view::npos) return false;
    choices.remove_prefix(comma + 1);
  }
}

/// `pattern` begins with '*': any characters of this token, and then the rest.
bool matches_star(std::string_view pattern, std::string_view path) {
  pattern.remove_prefix(1);
  const size_t token_end = std::min(path.find('.'), path.size());
  for (size_t taken = 0; taken <= token_end; ++taken) {
    if (matches(pattern, path.substr(taken))) return true;
  }
  return false;
}

}  // namespace

bool matches(std::string_view pattern, std::string_view path) {
  while (!pattern.empty()) {
    if (pattern.front() == '{') return matches_choice(pattern, path);
    if (pattern.front() == '*') return matches_star(pattern, path);
    if (path.empty() || path.front() != pattern.front()) return false;
    pattern.remove_prefix(1);
    path.remove_prefix(1);
  }
  return path.empty();
}

}  // namespace cleave::inline parallel
