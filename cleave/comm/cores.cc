#include "cleave/comm/cores.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sched.h>
#include <tuple>

#include "cleave/base/error.h"

namespace cleave {
namespace {

/// A number that the kernel tells of a processor's place; 0 where it does not tell.
int topology(int processor, const char* name) {
  std::ifstream file(str("/sys/devices/system/cpu/cpu", processor, "/topology/", name));
  int number = 0;
  return file >> number ? number : 0;
}

bool keep_to(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(static_cast<size_t>(processor), &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

}  // namespace

std::vector<int> usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {};  // more than fit into a cpu_set_t
  std::vector<std::tuple<int, int, int>> places;                // package, core, processor
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(static_cast<size_t>(processor), &set)) continue;
    places.emplace_back(topology(processor, "physical_package_id"), topology(processor, "core_id"),
                        processor);
  }
  std::sort(places.begin(), places.end());
  std::vector<int> processors;
  processors.reserve(places.size());
  for (const auto& place : places) processors.push_back(std::get<2>(place));
  return processors;
}

bool keep_to_own_processors(int rank, int num_ranks, int threads_per_rank) {
  const std::vector<int> all = usable_processors();
  const size_t share = all.size() / static_cast<size_t>(num_ranks);
  if (share < static_cast<size_t>(std::max(threads_per_rank, 1))) return false;
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(share * static_cast<size_t>(rank));
  return keep_to({begin, begin + static_cast<std::ptrdiff_t>(share)});
}

void keep_to_processor(int processor) {
  CLEAVE_CHECK(keep_to({processor}), Code::kUsage, "processor ", processor,
               " cannot be used: ", std::strerror(errno));
}

}  // namespace cleave
