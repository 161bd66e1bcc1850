#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace cleave::inline base {

/// Limits that the Linux control groups (cgroups, version 1 or 2) of this process set: those of its
/// container, service or batch job. A value is nullopt where there is no cgroup or no limit.
struct CgroupLimits {
  std::optional<int64_t> memory{};  ///< bytes
  std::optional<int64_t>
      memory_peak{};              ///< peak memory usage in bytes of the cgroup with that limit
  int64_t num_killed = 0;         ///< processes of this cgroup that the OOM killer has ended so far
  std::optional<double> cores{};  ///< CPU quota of all its processes together, in CPUs
};

/// The current limits. Of the process's own cgroup and its parents, the smallest limit counts.
/// `root` is the folder that contains proc and sys.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

/// Memory that programs can still take.
struct AvailableMemory {
  int64_t bytes = 0;
  bool is_of_cgroup = false;  ///< what a cgroup's limit leaves, which is less than the machine has
};

/// The machine's available memory (MemAvailable: free, or taken only by caches), or what the limits
/// of this process's cgroup and its parents leave if that is less. Swap does not count. nullopt if
/// the system reports neither. `root` as above.
std::optional<AvailableMemory> available_memory(const std::filesystem::path& root = "/");

/// Whether the process can still map `bytes` of address space, which `ulimit -v` may limit. The
/// mapping is released again.
bool has_address_space(int64_t bytes);

/// Makes sure that the process can open `count` more files or sockets: raises the soft limit
/// (RLIMIT_NOFILE) to the hard one if it is too low. Throws Error(kUsage) if the hard limit is too
/// low for `user`, e.g. "a job of 4096 ranks".
void reserve_descriptors(int64_t count, std::string_view user);

/// Peak resident memory of this process so far, in bytes.
int64_t peak_rss_bytes();

}  // namespace cleave::inline base
