#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace cleave::inline comm {

/// The bytes [begin, end) of a stream; empty if end <= begin.
struct StreamRange {
  int64_t begin = 0, end = 0;

  [[nodiscard]] int64_t size() const { return std::max<int64_t>(end - begin, 0); }
  [[nodiscard]] bool is_empty() const { return end <= begin; }
};

/// The bytes that are in both ranges.
inline StreamRange intersect(const StreamRange& a, const StreamRange& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// Rounds up to a whole cache line.
inline int64_t round_up_to_line(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// How the members of a group lie on hosts. Each host has consecutive members.
///
/// A lane is a set of members with the same local index, one of each host. Lanes share the bytes
/// that pass between hosts.
struct HostLayout {
  static constexpr int kMaxLanes = 16;     ///< enough to keep a network busy
  static constexpr int kMaxMembers = 128;  ///< of one host
  /// Below this many bytes in a lane, the latency of the exchanges costs more than the bytes save.
  static constexpr int64_t kMinLaneBytes = 32 << 10;

  int host = 0;            ///< of this member, counted in the order of the members
  int local = 0;           ///< this member's index on its host
  int num_lanes = 1;       ///< members of the smallest host, at most kMaxLanes
  std::vector<int> first;  ///< by host: its first member; then the number of members

  /// `host_ids` names the host of every member. nullopt if exchanges along lanes do not work: all
  /// members are on one host, or one's are not consecutive, or more than kMaxMembers.
  static std::optional<HostLayout> make(std::span<const int64_t> host_ids, int member);

  [[nodiscard]] int num_hosts() const { return static_cast<int>(first.size()) - 1; }
  /// The first member of a host.
  [[nodiscard]] int first_of(int host_index) const {
    return first[static_cast<size_t>(host_index)];
  }
  /// Members of this host.
  [[nodiscard]] int num_local() const { return first_of(host + 1) - first_of(host); }
  /// Whether this member takes part in the exchanges between hosts.
  [[nodiscard]] bool has_lane() const { return local < num_lanes; }
  /// Whether two members are on the same host.
  [[nodiscard]] bool are_together(int a, int b) const;

  /// Whether a sum of this many bytes of accumulators passes along the lanes: only if it has enough
  /// pieces to keep all hosts of the chain busy, there and back.
  [[nodiscard]] bool pays_to_sum(int64_t bytes) const {
    return bytes / num_lanes >= num_links() * kMinLaneBytes;
  }
  /// Whether data of which the largest host has this many bytes passes along the lanes.
  [[nodiscard]] bool pays_to_gather(int64_t bytes) const {
    return bytes / num_lanes >= kMinLaneBytes;
  }
  /// Exchanges that one piece of a sum needs, without the first.
  [[nodiscard]] int64_t num_links() const { return 2 * num_hosts() - 3; }
};

/// A stream of bytes whose equal parts belong to lanes. Each lane moves its part in pieces.
class LanePieces {
 public:
  /// `piece` is a multiple of 64; so parts and pieces begin at multiples of 64.
  LanePieces(const StreamRange& stream, int num_lanes, int64_t piece)
      : stream_(stream),
        lane_bytes_(round_up_to_line((stream.size() + num_lanes - 1) / num_lanes)),
        piece_(piece) {}

  /// The number of pieces of the longest lane.
  [[nodiscard]] int64_t count() const { return (lane_bytes_ + piece_ - 1) / piece_; }
  /// Bytes of a whole piece.
  [[nodiscard]] int64_t piece() const { return piece_; }
  /// Piece `index` of a lane; empty if there is no such piece.
  [[nodiscard]] StreamRange at(int lane, int64_t index) const;
  /// Bytes [from, from + size) of that piece.
  [[nodiscard]] StreamRange at(int lane, int64_t index, const StreamRange& within) const {
    const StreamRange whole = at(lane, index);
    return intersect(whole, {whole.begin + within.begin, whole.begin + within.end});
  }

 private:
  StreamRange stream_;
  int64_t lane_bytes_, piece_;
};

}  // namespace cleave::inline comm
