#include "cleave/runtime/cpu_binding.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sys/utsname.h>
#include <tuple>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/base/resource_limits.h"

namespace cleave::inline runtime {
namespace {

/// A number from the kernel's CPU topology; 0 if it is missing.
int topology(int cpu, const char* name) {
  std::ifstream file(str("/sys/devices/system/cpu/cpu", cpu, "/topology/", name));
  int number = 0;
  return file >> number ? number : 0;
}

bool set_affinity(const std::vector<int>& cpus) {
  const int last = *std::max_element(cpus.begin(), cpus.end());
  std::vector<cpu_set_t> set(static_cast<size_t>(last) / CPU_SETSIZE + 1);
  const size_t num_bytes = set.size() * sizeof(cpu_set_t);
  CPU_ZERO_S(num_bytes, set.data());
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), num_bytes, set.data());
  return sched_setaffinity(0, num_bytes, set.data()) == 0;
}

/// Identifies a host: the same on all its ranks, different on other hosts.
std::string host_identity() {
  std::string identity;
  if (std::ifstream("/proc/sys/kernel/random/boot_id") >> identity) return identity;
  utsname names{};
  uname(&names);
  return names.nodename;
}

/// A hash of the host and the CPUs: equal for ranks of one host that may run on the same CPUs.
int64_t affinity_hash(const std::vector<int>& cpus) {
  std::string text = host_identity();
  for (const int cpu : cpus) text += str(' ', cpu);
  return static_cast<int64_t>(hash_bytes(text));
}

/// The affinity hashes of all ranks, by rank.
std::vector<int64_t> gather_affinity_hashes(World& world, int64_t own) {
  const auto num_ranks = static_cast<size_t>(world.size());
  std::vector<int> ranks(num_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<int64_t> widths(num_ranks, 1);
  std::vector<int64_t> hashes(num_ranks);
  world.group(ranks, "world")
      ->all_gather(&own, hashes.data(), 1, widths, DType::kI64,
                   {.site = "CPU affinity of the ranks", .shape = {}});
  return hashes;
}

}  // namespace

std::vector<int> usable_cpus() {
  return usable_cpus(
      [](size_t num_bytes, cpu_set_t* set) { return sched_getaffinity(0, num_bytes, set); });
}

std::vector<int> usable_cpus(const GetAffinity& get) {
  constexpr size_t kMaxSets = 1024;  // a million CPUs
  std::vector<cpu_set_t> set(1);
  const auto num_bytes = [&set] { return set.size() * sizeof(cpu_set_t); };
  while (get(num_bytes(), set.data()) < 0) {
    CLEAVE_CHECK(errno == EINVAL && set.size() < kMaxSets, Code::kIo,
                 "sched_getaffinity failed: ", std::strerror(errno));
    set.resize(2 * set.size());
  }
  std::vector<std::tuple<int, int, int>> places;  // package, core, CPU
  for (int cpu = 0; cpu < static_cast<int>(8 * num_bytes()); ++cpu) {
    if (!CPU_ISSET_S(static_cast<size_t>(cpu), num_bytes(), set.data())) continue;
    places.emplace_back(topology(cpu, "physical_package_id"), topology(cpu, "core_id"), cpu);
  }
  std::sort(places.begin(), places.end());
  std::vector<int> cpus;
  cpus.reserve(places.size());
  for (const auto& place : places) cpus.push_back(std::get<2>(place));
  return cpus;
}

int threads_each(size_t num_cpus, int64_t num_ranks, std::optional<double> cores) {
  double usable = static_cast<double>(num_cpus);
  if (cores) usable = std::min(usable, *cores);
  return std::max(1, static_cast<int>(usable / static_cast<double>(num_ranks)));
}

CpuBinding::CpuBinding(World& world, int threads_per_rank) : before_(usable_cpus()) {
  const int64_t own = affinity_hash(before_);
  const std::vector<int64_t> all = gather_affinity_hashes(world, own);
  const auto num_sharing = std::count(all.begin(), all.end(), own);
  const auto index = std::count(all.begin(), all.begin() + world.rank(), own);
  const auto share = static_cast<std::ptrdiff_t>(before_.size()) / num_sharing;
  num_threads_ = threads_per_rank > 0
                     ? threads_per_rank
                     : threads_each(before_.size(), num_sharing, cgroup_limits().cores);
  if (share < num_threads_) return;
  const auto begin = before_.begin() + share * index;
  set_affinity({begin, begin + share});  // on failure the thread keeps its affinity
}

CpuBinding::~CpuBinding() {
  set_affinity(before_);
}

void bind_to_cpu(int cpu) {
  CLEAVE_CHECK(set_affinity({cpu}), Code::kUsage, "CPU ", cpu,
               " cannot be used: ", std::strerror(errno));
}

}  // namespace cleave::inline runtime
