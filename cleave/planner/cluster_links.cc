#include "cleave/planner/cluster_links.h"

#include <algorithm>
#include <cmath>

namespace cleave::inline planner {

double all_reduce_time(const Cluster& c, double bytes, const LinkGroup& group) {
  if (group.size <= 1) return 0;
  const double n = group.size;
  const double inside = c.host_link_rate * c.fitted.host_link_share;
  const double sent = 2 * (n - 1) / n * bytes;
  if (int64_t{group.size} * group.stride <= c.devices_per_host) {
    return sent / inside + 2 * (n - 1) * c.host_latency_s;
  }
  const double of_host = std::max(1, c.devices_per_host / group.stride);
  const double outside = c.net_link_rate * c.fitted.net_link_share * std::min(n, of_host);
  // Libraries sum over trees where rings would be long.
  const double hops = std::min(n - 1, 2 * std::log2(n));
  return sent / std::min(inside, outside) + 2 * hops * c.net_latency_s;
}

double send_time(const Cluster& c, double bytes, int distance) {
  if (distance < c.devices_per_host) {
    return bytes / (c.host_link_rate * c.fitted.host_link_share) + c.host_latency_s;
  }
  return bytes / (c.net_link_rate * c.fitted.net_link_share) + c.net_latency_s;
}

}  // namespace cleave::inline planner
