#include "cleave/comm/launch/cpu_binding.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sys/utsname.h>
#include <tuple>

#include "cleave/base/error.h"
#include "cleave/base/group_limits.h"
#include "cleave/base/hash.h"

namespace cleave {
namespace {

/// A number that the kernel tells of a processor's place; 0 where it does not tell.
int topology(int processor, const char* name) {
  std::ifstream file(str("/sys/devices/system/cpu/cpu", processor, "/topology/", name));
  int number = 0;
  return file >> number ? number : 0;
}

bool keep_to(const std::vector<int>& processors) {
  const int last = *std::max_element(processors.begin(), processors.end());
  std::vector<cpu_set_t> set(static_cast<size_t>(last) / CPU_SETSIZE + 1);
  const size_t num_bytes = set.size() * sizeof(cpu_set_t);
  CPU_ZERO_S(num_bytes, set.data());
  for (const int p : processors) CPU_SET_S(static_cast<size_t>(p), num_bytes, set.data());
  return sched_setaffinity(0, num_bytes, set.data()) == 0;
}

/// The same on all ranks of a host, and on no other host.
std::string host_identity() {
  std::string identity;
  if (std::ifstream("/proc/sys/kernel/random/boot_id") >> identity) return identity;
  utsname names{};
  uname(&names);
  return names.nodename;
}

/// Equal for ranks of one host that may run on the same processors.
int64_t place_of(const std::vector<int>& processors) {
  std::string place = host_identity();
  for (const int processor : processors) place += str(' ', processor);
  return static_cast<int64_t>(hash_bytes(place));
}

/// By rank.
std::vector<int64_t> places_of_all(World& world, int64_t own) {
  const auto num_ranks = static_cast<size_t>(world.size());
  std::vector<int> ranks(num_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<int64_t> widths(num_ranks, 1);
  std::vector<int64_t> places(num_ranks);
  world.group(ranks, "world")
      ->all_gather(&own, places.data(), 1, widths, DType::kI64,
                   {.site = "processors of the ranks", .shape = {}});
  return places;
}

}  // namespace

std::vector<int> usable_cpus() {
  return usable_cpus(
      [](size_t num_bytes, cpu_set_t* set) { return sched_getaffinity(0, num_bytes, set); });
}

std::vector<int> usable_cpus(const GetAffinity& get) {
  constexpr size_t kMostSets = 1024;  // a million processors
  std::vector<cpu_set_t> set(1);
  const auto num_bytes = [&set] { return set.size() * sizeof(cpu_set_t); };
  while (get(num_bytes(), set.data()) < 0) {
    CLEAVE_CHECK(errno == EINVAL && set.size() < kMostSets, Code::kIo,
                 "sched_getaffinity failed: ", std::strerror(errno));
    set.resize(2 * set.size());
  }
  std::vector<std::tuple<int, int, int>> places;  // package, core, processor
  for (int processor = 0; processor < static_cast<int>(8 * num_bytes()); ++processor) {
    if (!CPU_ISSET_S(static_cast<size_t>(processor), num_bytes(), set.data())) continue;
    places.emplace_back(topology(processor, "physical_package_id"), topology(processor, "core_id"),
                        processor);
  }
  std::sort(places.begin(), places.end());
  std::vector<int> processors;
  processors.reserve(places.size());
  for (const auto& place : places) processors.push_back(std::get<2>(place));
  return processors;
}

int threads_each(size_t num_cpus, int64_t num_ranks, std::optional<double> cores) {
  double usable = static_cast<double>(num_cpus);
  if (cores) usable = std::min(usable, *cores);
  return std::max(1, static_cast<int>(usable / static_cast<double>(num_ranks)));
}

CpuBinding::CpuBinding(World& world, int threads_per_rank) : before_(usable_cpus()) {
  const int64_t place = place_of(before_);
  const std::vector<int64_t> places = places_of_all(world, place);
  const auto alike = std::count(places.begin(), places.end(), place);
  const auto index = std::count(places.begin(), places.begin() + world.rank(), place);
  const auto share = static_cast<std::ptrdiff_t>(before_.size()) / alike;
  num_threads_ = threads_per_rank > 0 ? threads_per_rank
                                      : threads_each(before_.size(), alike, group_limits().cores);
  if (share < num_threads_) return;
  const auto begin = before_.begin() + share * index;
  keep_to({begin, begin + share});  // a system that refuses leaves the thread where it is
}

CpuBinding::~CpuBinding() {
  keep_to(before_);
}

void bind_to_cpu(int processor) {
  CLEAVE_CHECK(keep_to({processor}), Code::kUsage, "processor ", processor,
               " cannot be used: ", std::strerror(errno));
}

}  // namespace cleave
