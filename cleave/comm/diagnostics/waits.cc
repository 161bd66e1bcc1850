#include "cleave/comm/diagnostics/waits.h"

namespace cleave {

std::vector<int> missing_ranks(const SharedSegment& segment, int rank, const WaitTarget& awaited) {
  if (awaited.kind != WaitKind::kGroup) {
    const bool receives = awaited.kind == WaitKind::kRecv;
    const ChannelEnds* ring = receives ? segment.channel_ends(awaited.peer, rank)
                                       : segment.channel_ends(rank, awaited.peer);
    if (ring == nullptr) return {};
    const uint32_t end = (receives ? ring->head : ring->tail).load(std::memory_order_acquire);
    return end == awaited.stamp ? std::vector{awaited.peer} : std::vector<int>{};
  }
  const GroupEntry& entry = segment.group(awaited.group);
  std::vector<int> missing;
  for (int m = 0; m < entry.num_members; ++m) {
    const uint32_t stamp = segment.member(entry, m).stamp.load(std::memory_order_acquire);
    if (static_cast<int32_t>(stamp - awaited.stamp) < 0) {
      missing.push_back(segment.group_ranks(entry)[static_cast<size_t>(m)]);
    }
  }
  return missing;
}

std::optional<std::pair<WaitTarget, uint32_t>> wait_of(const SharedSegment& segment, int rank) {
  const RankSlot& slot = segment.rank(rank);
  const uint32_t epoch = slot.wait_epoch.load(std::memory_order_acquire);
  if (epoch % 2 == 0) return std::nullopt;
  const WaitTarget awaited{.kind = slot.wait_kind.load(std::memory_order_acquire),
                           .group = slot.wait_group.load(std::memory_order_acquire),
                           .stamp = slot.wait_stamp.load(std::memory_order_acquire),
                           .peer = slot.wait_peer.load(std::memory_order_acquire)};
  if (slot.wait_epoch.load(std::memory_order_acquire) != epoch) return std::nullopt;
  return std::pair{awaited, epoch};
}

}  // namespace cleave
