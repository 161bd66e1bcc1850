#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

namespace cleave {

/// What the control groups of this process allow it: those of the container, service or batch job
/// that it runs in. Linux's cgroups, version 1 or 2. Nothing where there are none, or no limits.
struct GroupLimits {
  std::optional<int64_t> memory{};       ///< bytes
  std::optional<int64_t> memory_peak{};  ///< the most bytes that were held under that limit
  int64_t num_killed = 0;         ///< processes of its group that lack of memory has ended so far
  std::optional<double> cores{};  ///< processor time over time, of all its processes together
};

/// As they are now: of the process's own groups and those around them the least. `root` is the
/// folder in which proc and sys lie.
GroupLimits group_limits(const std::filesystem::path& root = "/");

}  // namespace cleave
