#include "cleave/comm/shm/shm_world.h"

#include <algorithm>
#include <xxhash.h>

#include "cleave/comm/shm/shm_group.h"

namespace cleave::inline comm {
namespace {

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += str(text.empty() ? "" : ", ", rank);
  return "[" + text + "]";
}

}  // namespace

ShmWorld::Access ShmWorld::access(std::shared_ptr<SharedSegment> segment, int rank,
                                  const RankOptions& options,
                                  std::unique_ptr<TcpReplicator> replicator) {
  const auto endpoint =
      std::make_shared<RankEndpoint>(std::move(segment), rank, options, std::move(replicator));
  return {endpoint, std::make_shared<Mailbox>(endpoint)};
}

ShmWorld::ShmWorld(std::shared_ptr<SharedSegment> segment, int rank, const RankOptions& options)
    : job_(access(std::move(segment), rank, options, nullptr)) {}

ShmWorld::ShmWorld(std::shared_ptr<SharedSegment> segment, int rank, const RankOptions& options,
                   std::unique_ptr<TcpReplicator> replicator, std::shared_ptr<SharedSegment> host,
                   std::shared_ptr<HostNetwork> network)
    : job_(access(segment, rank, options, std::move(replicator))), network_(std::move(network)) {
  // Groups, and with them the endpoints, may outlive this object.
  const auto progress = [shared = network_] { shared->progress(); };
  if (network_) job_.endpoint->set_progress(progress);
  if (host == nullptr) return;
  host_ = access(host, rank, options, nullptr);
  if (network_) host_->endpoint->set_progress(progress);
  job_.endpoint->set_beside(std::move(host));
  host_->endpoint->set_beside(std::move(segment));
}

ShmWorld::~ShmWorld() {
  if (host_) host_->endpoint->end_call_threads();
  job_.endpoint->end_call_threads();
}

void ShmWorld::abort(const Error& cause) {
  // This rank may have learned of the job's first failure in one of the segments.
  if (host_) SharedSegment::share_failure(job_.endpoint->segment(), host_->endpoint->segment());
  job_.endpoint->abort(cause);
  if (host_) host_->endpoint->abort(cause);
  // The root cause, whichever rank ends first.
  const auto first = job_.endpoint->segment().aborted();
  if (network_) network_->note_failure(first ? first->code : cause.code());
}

void ShmWorld::use_device(std::shared_ptr<Device> device) {
  device_ = std::move(device);
  if (device_ && !monitor_) {
    monitor_ = std::make_shared<DeviceMonitor>(job_.endpoint, host_ ? host_->endpoint : nullptr);
  }
}

void ShmWorld::note_step(int64_t step) {
  job_.endpoint->slot().step.store(step, std::memory_order_relaxed);
  if (host_) host_->endpoint->slot().step.store(step, std::memory_order_relaxed);
}

const ShmWorld::Access& ShmWorld::access_of(const std::vector<int>& ranks) const {
  const bool is_of_host = host_ && std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
                            return host_->endpoint->segment().has_rank(rank);
                          });
  return is_of_host ? *host_ : job_;
}

std::shared_ptr<Group> ShmWorld::group(const std::vector<int>& ranks, const std::string& name) {
  job_.endpoint->check();
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
  const auto& [endpoint, mailbox] = access_of(ranks);
  const uint32_t index = endpoint->segment().join_group(key | 1U, ranks, name);
  const std::string known = endpoint->segment().group(index).name;
  if (known != name.substr(0, kGroupNameBytes - 1)) {
    endpoint->fail(Error(Code::kDesync, str("group ", ordinal, " of ranks ", list(ranks), " is ",
                                            known, " on another rank, ", name, " on rank ", rank(),
                                            "; make groups in the same order on all ranks")));
  }
  if (endpoint->replicator() != nullptr) endpoint->replicator()->announce(index);
  return std::make_shared<ShmGroup>(endpoint, mailbox,
                                    ShmGroup::Parts{.name = name,
                                                    .ranks = ranks,
                                                    .index = index,
                                                    .device = device_,
                                                    .monitor = monitor_,
                                                    .host = host_ ? host_->endpoint : nullptr,
                                                    .network = network_});
}

}  // namespace cleave::inline comm
