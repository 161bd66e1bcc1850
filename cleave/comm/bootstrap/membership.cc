#include "cleave/comm/bootstrap/membership.h"

#include <algorithm>
#include <map>
#include <span>
#include <unistd.h>
#include <utility>

#include "cleave/base/str.h"
#include "cleave/comm/shm/segment_layout.h"

namespace cleave::inline comm {

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr size_t kMaxListed = 16;  // of a longer list, the first half as many are named
  if (ranks.size() <= kMaxListed) return list_text(ranks);
  return str(list_text(std::span(ranks).first(kMaxListed / 2)), ", ... (", ranks.size(),
             " in total)");
}

std::string conflict_of_hosts(std::span<const HostPlace> places) {
  std::map<std::pair<uint64_t, int32_t>, std::vector<int>> ranks_of;  // by host and size
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const HostPlace& place = places[rank];
    ranks_of[{place.host, place.local_world_size}].push_back(static_cast<int>(rank));
  }
  for (const auto& [key, ranks] : ranks_of) {
    const uint64_t host = key.first;
    const int32_t size = key.second;
    // Hosts with the same name may look like one.
    if (size >= 1 && ranks.size() % static_cast<size_t>(size) == 0) continue;
    const auto other = std::find_if(ranks_of.begin(), ranks_of.end(), [&](const auto& each) {
      return each.first.first == host && each.first.second != size;
    });
    return str("LOCAL_WORLD_SIZE (or the launcher's variable for it) is ", size, " on rank ",
               ranks.front(), ", and ",
               other == ranks_of.end() ? str("only ", ranks.size(), " of the ranks are on its host")
                                       : str(other->first.second, " on rank ",
                                             other->second.front(), " of the same host"),
               "; give each rank the number of ranks on its host");
  }
  return "";
}

Membership::Membership(int world_size) : names_(static_cast<size_t>(world_size)) {
  names_[0] = str("pid ", getpid());
}

std::string Membership::add(const RankInfo& info, const std::string& where) {
  const auto world_size = static_cast<int>(names_.size());
  const std::string name = str("pid ", info.pid, where);
  if (info.magic != kJobMagic) {
    return str("rank ", info.rank, " (", name, ") runs version ", info.magic & 0xffffU,
               " of the shared segment, rank 0 version ", kLayoutVersion,
               "; start all ranks from the same build");
  }
  if (info.world_size != world_size) {
    return str("rank 0 has world size ", world_size, ", rank ", info.rank, " (", name,
               ") has world size ", info.world_size,
               "; give all ranks the same WORLD_SIZE, and each job its own MASTER_PORT");
  }
  if (info.rank < 0 || info.rank >= world_size) {
    return str("rank ", info.rank, " (", name, ") is not in [0, ", world_size, ")");
  }
  if (info.local_world_size != 0) {
    return str("LOCAL_WORLD_SIZE (or the launcher's variable for it) is ", world_size,
               " on rank 0, as WORLD_SIZE is, ", "and ", info.local_world_size, " on rank ",
               info.rank, " (", name,
               ") of the same host; give each rank the number of ranks on its host");
  }
  std::string& known = names_[static_cast<size_t>(info.rank)];
  if (!known.empty()) {
    return str("rank ", info.rank, " is claimed by ", known, " and by ", name,
               "; give each process its own RANK, and each job its own MASTER_PORT");
  }
  known = name;
  ++num_registered_;
  return "";
}

std::string Membership::missing() const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < names_.size(); ++rank) {
    if (names_[rank].empty()) ranks.push_back(static_cast<int>(rank));
  }
  return str("rank(s) ", ranks_text(ranks), " of ", names_.size(),
             " did not join; start all ranks");
}

}  // namespace cleave::inline comm
