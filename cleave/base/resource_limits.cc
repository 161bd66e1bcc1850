// Source for the cgroup files: the kernel's documentation, admin-guide/cgroup-v2,
// admin-guide/cgroup-v1/memory and scheduler/sched-bwc. For MemAvailable: filesystems/proc.
#include "cleave/base/resource_limits.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/resource.h>
#include <system_error>

#include "cleave/base/error.h"

namespace cleave::inline base {
namespace {

namespace fs = std::filesystem;

/// Version 1 writes "no memory limit" as a huge number of bytes.
constexpr int64_t kNoLimit = int64_t{1} << 60;

/// The cgroup of this process for one controller.
struct Cgroup {
  bool is_version1 = false;
  fs::path top;   // root of the hierarchy
  fs::path path;  // the folder of this process's cgroup
};

/// A line of /proc/self/cgroup is ID:CONTROLLERS:PATH; version 2 names no controllers.
std::optional<Cgroup> own_cgroup(const fs::path& root, const std::string& controller) {
  std::optional<Cgroup> cgroup;
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
    // Inside a container the path may be the host's path; then the container's cgroup is `top`.
    std::error_code unknown;
    const bool is_seen = !below.empty() && fs::exists(top / below, unknown);
    cgroup = Cgroup{is_version1, top, is_seen ? top / below : top};
    if (is_version1) break;
  }
  return cgroup;
}

/// Visits the folder of the cgroup and of its parents.
void for_each_ancestor(const Cgroup& cgroup, const std::function<void(const fs::path&)>& visit) {
  fs::path path = cgroup.path;
  for (; path != cgroup.top && path.has_relative_path(); path = path.parent_path()) visit(path);
  visit(cgroup.top);
}

/// The first number in the file; nullopt for "max" or an unreadable file.
std::optional<int64_t> number_in(const fs::path& file) {
  int64_t number = 0;
  return std::ifstream(file) >> number ? std::optional(number) : std::nullopt;
}

/// The number after `name` in a file of "NAME NUMBER" lines; 0 if the name is missing.
int64_t number_of(const fs::path& file, std::string_view name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t number = 0;
    if (words >> key >> number && key == name) return number;
  }
  return 0;
}

/// Bytes that a cgroup with a limit can still take: the kernel frees what it holds of files (and in
/// version 2 the reclaimable part of its slabs) before it kills a process. Memory that processes
/// share is not part of it.
std::optional<int64_t> bytes_left(const fs::path& folder, bool is_version1) {
  const auto limit = number_in(folder / (is_version1 ? "memory.limit_in_bytes" : "memory.max"));
  const auto used = number_in(folder / (is_version1 ? "memory.usage_in_bytes" : "memory.current"));
  if (!limit || *limit >= kNoLimit || !used) return std::nullopt;
  const fs::path stat = folder / "memory.stat";
  const int64_t reclaimable =
      is_version1 ? number_of(stat, "total_inactive_file") + number_of(stat, "total_active_file")
                  : number_of(stat, "inactive_file") + number_of(stat, "active_file") +
                        number_of(stat, "slab_reclaimable");
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - reclaimable));
}

/// CPU quota in CPUs (CPU time per elapsed time); nullopt without a quota.
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

CgroupLimits cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  if (const auto cgroup = own_cgroup(root, "memory")) {
    const bool v1 = cgroup->is_version1;
    limits.num_killed =
        number_of(cgroup->path / (v1 ? "memory.oom_control" : "memory.events"), "oom_kill");
    for_each_ancestor(*cgroup, [&](const fs::path& folder) {
      const auto limit = number_in(folder / (v1 ? "memory.limit_in_bytes" : "memory.max"));
      if (!limit || *limit >= limits.memory.value_or(kNoLimit)) return;
      limits.memory = limit;
      limits.memory_peak = number_in(folder / (v1 ? "memory.max_usage_in_bytes" : "memory.peak"));
    });
  }
  if (const auto cgroup = own_cgroup(root, "cpu")) {
    for_each_ancestor(*cgroup, [&](const fs::path& folder) {
      const auto cores = cores_of(folder, cgroup->is_version1);
      if (cores && *cores < limits.cores.value_or(*cores + 1)) limits.cores = cores;
    });
  }
  return limits;
}

std::optional<AvailableMemory> available_memory(const fs::path& root) {
  std::optional<AvailableMemory> found;
  const int64_t kib = number_of(root / "proc/meminfo", "MemAvailable:");
  if (kib > 0) found = AvailableMemory{.bytes = int64_t{1024} * kib};
  if (const auto cgroup = own_cgroup(root, "memory")) {
    for_each_ancestor(*cgroup, [&](const fs::path& folder) {
      const auto left = bytes_left(folder, cgroup->is_version1);
      if (left && (!found || *left < found->bytes)) {
        found = AvailableMemory{.bytes = *left, .is_of_cgroup = true};
      }
    });
  }
  return found;
}

bool has_address_space(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* const at =
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return false;
  munmap(at, size);
  return true;
}

void reserve_descriptors(int64_t count, std::string_view user) {
  constexpr int64_t kSpare = 64;  // for what the program opens later
  std::error_code ignored;
  const auto num_open =
      std::distance(fs::directory_iterator("/proc/self/fd", ignored), fs::directory_iterator());
  const auto needed = static_cast<rlim_t>(count + num_open + kSpare);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  CLEAVE_CHECK(limit.rlim_max >= needed, Code::kUsage, user, " needs ", needed,
               " open files and sockets; the hard limit is ", limit.rlim_max,
               " (ulimit -Hn); ask the administrator to raise it, or use fewer ranks or files");
  limit.rlim_cur = limit.rlim_max;
  CLEAVE_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, Code::kUsage, user, " needs ", needed,
               " open files and sockets, but the soft limit cannot be raised; raise it before the "
               "start, with ulimit -n ",
               needed);
}

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

}  // namespace cleave::inline base
