#include "cleave/comm/hosts/host_links.h"

#include <cstring>
#include <utility>
#include <xxhash.h>

#include "cleave/comm/hosts/tcp_exchange.h"

namespace cleave::inline comm {
namespace {

constexpr size_t kAloneBytes = 256 << 10;

/// The smallest rank on this host: its name in the job.
int64_t host_id(const RankEndpoint& job, const RankEndpoint* host) {
  int rank = 0;
  while (rank < job.rank() && (host == nullptr || !host->segment().has_rank(rank))) ++rank;
  return rank;
}

/// What members send each other before they connect.
struct Introduction {
  int64_t host_id;
  int64_t channel;  // of the network; that of the first member counts
};

/// Sends this member's introduction to all members and returns those of all.
std::vector<Introduction> exchange(CollectiveSync& sync, const Introduction& own) {
  std::memcpy(sync.payload(), &own, sizeof(own));
  sync.declare_send_all(sizeof(own));
  sync.barrier();
  std::vector<Introduction> all(static_cast<size_t>(sync.num_members()));
  for (int m = 0; m < sync.num_members(); ++m) {
    std::memcpy(&all[static_cast<size_t>(m)], sync.payload_of(m), sizeof(own));
  }
  return all;
}

/// A group of some members of a group, which has the same name. Its key follows from theirs.
uint32_t join_subgroup(SharedSegment& segment, const GroupEntry& whole,
                       const std::vector<int>& ranks) {
  const uint64_t key =
      XXH3_64bits_withSeed(ranks.data(), ranks.size() * sizeof(int), whole.key.load());
  return segment.join_group(key | 1U, ranks, whole.name);
}

}  // namespace

HostBuffers::HostBuffers() : alone_(kAloneBytes) {}

HostBuffers::HostBuffers(std::shared_ptr<RankEndpoint> host, uint32_t group, int local) {
  sync_.emplace(std::move(host), group, local);
}

int64_t HostBuffers::bytes() const {
  return sync_ ? sync_->payload_bytes() : static_cast<int64_t>(alone_.size());
}

std::byte* HostBuffers::own() {
  return sync_ ? sync_->payload() : alone_.data();
}

void HostBuffers::publish() {
  if (!sync_) return;
  // The group's begin() records the thread in the job's segment only.
  sync_->endpoint().note_thread();
  sync_->barrier();
}

const std::byte* HostBuffers::of(int local) const {
  return sync_ ? sync_->payload_of(local) : alone_.data();
}

std::unique_ptr<HostLinks> connect_hosts(CollectiveSync& sync,
                                         const std::shared_ptr<RankEndpoint>& job,
                                         const std::shared_ptr<RankEndpoint>& host,
                                         HostNetwork* network) {
  const bool gives_channel = network != nullptr && sync.member() == 0;
  const auto members = exchange(sync, {.host_id = host_id(*job, host.get()),
                                       .channel = gives_channel ? network->new_channel() : 0});
  std::vector<int64_t> ids;
  ids.reserve(members.size());
  for (const Introduction& member : members) ids.push_back(member.host_id);
  const auto layout = HostLayout::make(ids, sync.member());
  const bool is_one_each = layout && layout->num_hosts() == sync.num_members();
  if (!layout || (is_one_each && network == nullptr)) return nullptr;
  const GroupEntry& whole = job->segment().group(sync.group());
  const auto all = job->segment().group_ranks(whole);
  auto links = std::make_unique<HostLinks>();
  links->layout = *layout;
  links->fast_sums = network != nullptr && network->has_fast_sums();
  if (layout->num_local() == 1) {
    links->buffers = std::make_unique<HostBuffers>();
  } else {
    const auto begin = all.begin() + layout->first_of(layout->host);
    const std::vector<int> local(begin, begin + layout->num_local());
    const uint32_t group = join_subgroup(host->segment(), whole, local);
    links->buffers = std::make_unique<HostBuffers>(host, group, layout->local);
  }
  if (!layout->has_lane()) return links;
  std::vector<int> lane;
  lane.reserve(static_cast<size_t>(layout->num_hosts()));
  for (int h = 0; h < layout->num_hosts(); ++h) {
    const int member = layout->first_of(h) + layout->local;
    lane.push_back(all[static_cast<size_t>(member)]);
  }
  if (network != nullptr) {
    links->exchange = network->connect(job, lane, layout->host, all[0], members[0].channel);
    return links;
  }
  const uint32_t group = join_subgroup(job->segment(), whole, lane);
  job->replicator()->announce(group);
  links->exchange = std::make_unique<TcpExchange>(job, group, layout->host);
  return links;
}

}  // namespace cleave::inline comm
