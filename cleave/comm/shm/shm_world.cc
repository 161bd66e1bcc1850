#include "cleave/comm/shm/shm_world.h"

#include <algorithm>
#include <xxhash.h>

#include "cleave/comm/shm/shm_group.h"

namespace cleave {
namespace {

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += str(text.empty() ? "" : ", ", rank);
  return "[" + text + "]";
}

}  // namespace

ShmWorld::ShmWorld(std::shared_ptr<SharedSegment> segment, int rank, const RankOptions& options,
                   std::unique_ptr<TcpReplicator> replicator)
    : endpoint_(
          std::make_shared<RankEndpoint>(std::move(segment), rank, options, std::move(replicator))),
      mailbox_(std::make_shared<Mailbox>(endpoint_)) {}

std::shared_ptr<Group> ShmWorld::group(const std::vector<int>& ranks, const std::string& name) {
  endpoint_->check();
  const bool ascends =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  CLEAVE_CHECK(!ranks.empty() && ascends && ranks.front() >= 0 && ranks.back() < size(),
               Code::kUsage, "group ", name, " of ranks ", list(ranks),
               "; they must ascend, from 0 to ", size() - 1);
  CLEAVE_CHECK(std::binary_search(ranks.begin(), ranks.end(), rank()), Code::kUsage, "group ", name,
               " of ranks ", list(ranks), " was requested by rank ", rank(),
               "; only members may make a group");
  // The key of a group is a hash of its ranks and of the number of earlier groups of these ranks.
  const int64_t ordinal = num_groups_[ranks]++;
  const uint64_t key = XXH3_64bits_withSeed(ranks.data(), ranks.size() * sizeof(int),
                                            static_cast<uint64_t>(ordinal));
  const uint32_t index = endpoint_->segment().join_group(key | 1U, ranks, name);
  const std::string known = endpoint_->segment().group(index).name;
  if (known != name.substr(0, kGroupNameBytes - 1)) {
    endpoint_->fail(Error(Code::kDesync, str("group ", ordinal, " of ranks ", list(ranks), " is ",
                                             known, " on another rank, ", name, " on rank ", rank(),
                                             "; make groups in the same order on all ranks")));
  }
  if (endpoint_->replicator() != nullptr) endpoint_->replicator()->announce(index);
  return std::make_shared<ShmGroup>(endpoint_, mailbox_,
                                    ShmGroup::Parts{name, ranks, index, device_});
}

}  // namespace cleave
