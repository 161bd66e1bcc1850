#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cleave/comm/job_page.h"

namespace cleave {

/// What a rank waits for.
struct Awaited {
  WaitKind kind = WaitKind::kGroup;
  uint32_t group = 0;  ///< index in the job page
  uint32_t stamp = 0;  ///< that all members must reach; of a message: the end that must move on
  int peer = -1;       ///< world rank, for messages
};

/// The world ranks that `rank` waits for; none once it only has to wake up.
std::vector<int> missing_ranks(const JobPage& page, int rank, const Awaited& awaited);

/// The wait that a rank is in and its epoch; nothing when it waits for nobody. A rank with several
/// threads may wait in one and work in another (RankSlot::uses_many_threads).
std::optional<std::pair<Awaited, uint32_t>> wait_of(const JobPage& page, int rank);

}  // namespace cleave
