#include "cleave/comm/hosts/host_layout.h"

#include <limits>
#include <set>

namespace cleave::inline comm {

std::optional<HostLayout> HostLayout::make(std::span<const int64_t> host_ids, int member) {
  HostLayout layout;
  std::set<int64_t> known;
  for (size_t m = 0; m < host_ids.size(); ++m) {
    const bool begins = m == 0 || host_ids[m] != host_ids[m - 1];
    if (begins && !known.insert(host_ids[m]).second) return std::nullopt;
    if (begins) layout.first.push_back(static_cast<int>(m));
    if (static_cast<int>(m) == member) layout.host = static_cast<int>(layout.first.size()) - 1;
  }
  layout.local = member - layout.first_of(layout.host);
  layout.first.push_back(static_cast<int>(host_ids.size()));
  int smallest = std::numeric_limits<int>::max(), largest = 0;
  for (int host = 0; host < layout.num_hosts(); ++host) {
    const int members = layout.first_of(host + 1) - layout.first_of(host);
    smallest = std::min(smallest, members);
    largest = std::max(largest, members);
  }
  if (layout.num_hosts() < 2 || largest > kMaxMembers) return std::nullopt;
  layout.num_lanes = std::min(smallest, kMaxLanes);
  return layout;
}

bool HostLayout::are_together(int a, int b) const {
  const auto host_of = [&](int member) {
    return std::upper_bound(first.begin(), first.end(), member) - first.begin();
  };
  return host_of(a) == host_of(b);
}

StreamRange LanePieces::at(int lane, int64_t index) const {
  if (index < 0 || index >= count()) return {};
  const int64_t part = stream_.begin + lane * lane_bytes_, begin = part + index * piece_;
  const int64_t end = std::min({begin + piece_, part + lane_bytes_, stream_.end});
  return begin < end ? StreamRange{begin, end} : StreamRange{};
}

}  // namespace cleave::inline comm
