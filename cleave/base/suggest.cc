#include "cleave/base/suggest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace cleave::inline base {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> names,
                                       size_t count) {
  std::vector<std::pair<size_t, size_t>> ranked;  // distance, index
  ranked.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) ranked.emplace_back(edit_distance(name, names[i]), i);
  }
  count = std::min(count, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count),
                    ranked.end());
  std::vector<std::string> nearest;
  for (size_t i = 0; i < count; ++i) nearest.push_back(names[ranked[i].second]);
  return nearest;
}

std::optional<std::string> likely_name(std::string_view name, std::span<const std::string> names) {
  const std::vector<std::string> nearest = nearest_names(name, names, 1);
  if (nearest.empty()) return std::nullopt;
  const size_t longer = std::max(name.size(), nearest.front().size());
  if (5 * edit_distance(name, nearest.front()) <= 2 * longer) return nearest.front();
  constexpr size_t kMinStart = 3;
  std::optional<std::string> begun;
  for (const std::string& candidate : names) {
    if (name.size() < kMinStart || !candidate.starts_with(name)) continue;
    if (begun) return std::nullopt;
    begun = candidate;
  }
  return begun;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> names) {
  const std::vector<std::string> nearest = nearest_names(name, names);
  std::string text;
  for (size_t i = 0; i < nearest.size(); ++i) {
    text += i == 0 ? "; did you mean '" : i + 1 == nearest.size() ? " or '" : ", '";
    text += nearest[i] + "'";
  }
  return text;
}

}  // namespace cleave::inline base
