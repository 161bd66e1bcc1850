// The files and what they mean: the kernel's documentation, admin-guide/cgroup-v2,
// admin-guide/cgroup-v1/memory and scheduler/sched-bwc.
#include "cleave/base/group_limits.h"

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>

namespace cleave {
namespace {

namespace fs = std::filesystem;

/// Version 1 writes no limit of memory as the most pages that there could be.
constexpr int64_t kNoLimit = int64_t{1} << 60;

/// A group that limits one thing.
struct Group {
  bool is_version1 = false;
  fs::path top;   // where groups begin
  fs::path path;  // this process's
};

/// A line of /proc/self/cgroup is ID:CONTROLLERS:PATH; version 2 names no controllers.
std::optional<Group> own_group(const fs::path& root, const std::string& controller) {
  std::optional<Group> group;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_version1 = (',' + controllers + ',').find(',' + controller + ',') < line.size();
    if (!is_version1 && !controllers.empty()) continue;
    const fs::path top = root / (is_version1 ? "sys/fs/cgroup/" + controller : "sys/fs/cgroup");
    const fs::path below = fs::path(line.substr(second + 1)).relative_path();
    // Inside a container the path may be that of outside: its own group is then on top.
    std::error_code unknown;
    const bool is_seen = !below.empty() && fs::exists(top / below, unknown);
    group = Group{is_version1, top, is_seen ? top / below : top};
    if (is_version1) break;
  }
  return group;
}

/// Visits the folder of the group and of those around it.
void for_each_around(const Group& group, const std::function<void(const fs::path&)>& visit) {
  fs::path path = group.path;
  for (; path != group.top && path.has_relative_path(); path = path.parent_path()) visit(path);
  visit(group.top);
}

/// The first number; nothing for "max", and where the file cannot be read.
std::optional<int64_t> number_in(const fs::path& file) {
  int64_t number = 0;
  return std::ifstream(file) >> number ? std::optional(number) : std::nullopt;
}

/// The number behind a name, one a line; 0 where there is none.
int64_t number_of(const fs::path& file, std::string_view name) {
  std::ifstream lines(file);
  std::string key;
  int64_t number = 0;
  while (lines >> key >> number) {
    if (key == name) return number;
  }
  return 0;
}

/// Processor time over time; nothing where there is no quota.
std::optional<double> cores_of(const fs::path& folder, bool is_version1) {
  std::optional<int64_t> quota, period;
  if (is_version1) {
    quota = number_in(folder / "cpu.cfs_quota_us");  // -1: none
    period = number_in(folder / "cpu.cfs_period_us");
  } else {
    std::string text;
    int64_t of_period = 0;
    std::ifstream file(folder / "cpu.max");
    if (file >> text >> of_period && text != "max") {
      quota = std::strtoll(text.c_str(), nullptr, 10);
      period = of_period;
    }
  }
  if (quota.value_or(-1) <= 0 || period.value_or(0) <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

GroupLimits group_limits(const fs::path& root) {
  GroupLimits limits;
  if (const auto group = own_group(root, "memory")) {
    const bool v1 = group->is_version1;
    limits.num_killed =
        number_of(group->path / (v1 ? "memory.oom_control" : "memory.events"), "oom_kill");
    for_each_around(*group, [&](const fs::path& folder) {
      const auto limit = number_in(folder / (v1 ? "memory.limit_in_bytes" : "memory.max"));
      if (!limit || *limit >= limits.memory.value_or(kNoLimit)) return;
      limits.memory = limit;
      limits.memory_peak = number_in(folder / (v1 ? "memory.max_usage_in_bytes" : "memory.peak"));
    });
  }
  if (const auto group = own_group(root, "cpu")) {
    for_each_around(*group, [&](const fs::path& folder) {
      const auto cores = cores_of(folder, group->is_version1);
      if (cores && *cores < limits.cores.value_or(*cores + 1)) limits.cores = cores;
    });
  }
  return limits;
}

}  // namespace cleave
