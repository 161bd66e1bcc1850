#include "cleave/planner/cluster_links.h"

#include <algorithm>
#include <cmath>

namespace cleave::inline planner {
namespace {

/// Whether each of the groups of `span` consecutive devices, of `world`, lies within a host: with 3
/// devices a group and 8 a host, some lie on two.
bool is_inside(const Cluster& c, int64_t span, int64_t world) {
  if (std::max(span, world) <= c.devices_per_host) return true;
  return span <= c.devices_per_host && (world == 0 || c.devices_per_host % span == 0);
}

}  // namespace

double all_reduce_time(const Cluster& c, double bytes, const LinkGroup& group) {
  if (group.size <= 1) return 0;
  const double n = group.size;
  const double inside = c.host_link_rate * c.fitted.host_link_share;
  const double sent = 2 * (n - 1) / n * bytes;
  if (is_inside(c, int64_t{group.size} * group.stride, group.world)) {
    return sent / inside + 2 * (n - 1) * c.host_latency_s;
  }
  const double of_host = std::max(1, c.devices_per_host / group.stride);
  const double outside = c.net_link_rate * c.fitted.net_link_share * std::min(n, of_host);
  // Libraries sum over trees where rings would be long.
  const double hops = std::min(n - 1, 2 * std::log2(n));
  return sent / std::min(inside, outside) + 2 * hops * c.net_latency_s;
}

double all_to_all_time(const Cluster& c, double bytes, const LinkGroup& group) {
  if (group.size <= 1) return 0;
  const double n = group.size;
  const double inside = c.host_link_rate * c.fitted.host_link_share;
  if (is_inside(c, int64_t{group.size} * group.stride, group.world)) {
    return (n - 1) / n * bytes / inside + (n - 1) * c.host_latency_s;
  }
  // Each device has its own link to other hosts.
  const double of_host = std::min(n, std::max(1.0, double{1} * c.devices_per_host / group.stride));
  const double outside = c.net_link_rate * c.fitted.net_link_share;
  return std::max((n - of_host) / n * bytes / outside, (of_host - 1) / n * bytes / inside) +
         (n - 1) * c.net_latency_s;
}

double send_time(const Cluster& c, double bytes, int64_t distance, int64_t world) {
  // Example: stages of 4 devices on hosts of 8. Every second message leaves its host, and the
  // others wait for it.
  if (std::max(distance + 1, world) <= c.devices_per_host) {
    return bytes / (c.host_link_rate * c.fitted.host_link_share) + c.host_latency_s;
  }
  return bytes / (c.net_link_rate * c.fitted.net_link_share) + c.net_latency_s;
}

}  // namespace cleave::inline planner
