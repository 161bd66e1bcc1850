#include "cleave/comm/shm/shm_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "cleave/comm/diagnostics/flight_log.h"
#include "cleave/comm/hosts/host_collectives.h"
#include "cleave/comm/shm/collectives.h"

namespace cleave::inline comm {
namespace {

// Up to this size a copy costs less than the second synchronization of a direct collective.
constexpr int64_t kDirectBytes = 4 << 10;
// Up to this size reading all summands costs less than the second synchronization of kTwoShot.
constexpr int64_t kTwoShotBytes = 16 << 10;

/// How a collective moves its data.
enum class Algorithm {
  kStaged,   ///< data passes through the members' payloads in pieces; each member sums everything
  kTwoShot,  ///< the same, but each member sums one part of a piece (reduce-scatter, all-gather)
  kDirect,   ///< rank threads read and write each other's memory
};

/// Chooses the algorithm of a collective whose members each contribute `bytes`.
///
/// kStaged synchronizes once per piece, and each member reads the data of all. kTwoShot
/// synchronizes twice per piece, and each member reads twice the data of one. kDirect synchronizes
/// twice in total and copies nothing.
Algorithm choose_algorithm(const CollectiveSync& sync, Op op, int64_t bytes) {
  if (sync.is_direct() && bytes > kDirectBytes) return Algorithm::kDirect;
  const bool is_two_shot = op == Op::kAllReduce && sync.num_members() > 2 && bytes > kTwoShotBytes;
  return is_two_shot ? Algorithm::kTwoShot : Algorithm::kStaged;
}

const std::byte* bytes_of(const void* data) {
  return static_cast<const std::byte*>(data);
}

std::byte* bytes_of(void* data) {
  return static_cast<std::byte*>(data);
}

void check_count(int64_t count, std::string_view what) {
  CLEAVE_CHECK(count >= 0, Code::kUsage, what, "=", count, "; it must not be negative");
}

void check_reducible(DType dtype, Op op) {
  CLEAVE_CHECK(can_reduce(dtype), Code::kUsage, name(op), " of ", name(dtype),
               "; it takes fp32, fp64, bf16, fp16, int64 or int32");
}

std::vector<int64_t> times(std::span<const int64_t> counts, int64_t factor) {
  std::vector<int64_t> result;
  result.reserve(counts.size());
  for (const int64_t count : counts) result.push_back(count * factor);
  return result;
}

int member_of(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

ShmGroup::ShmGroup(std::shared_ptr<RankEndpoint> endpoint, std::shared_ptr<Mailbox> mailbox,
                   const Parts& parts)
    : AsyncGroup(parts.name, member_of(parts.ranks, endpoint->rank()), parts.ranks),
      endpoint_(std::move(endpoint)),
      host_(parts.host),
      network_(parts.network),
      sync_(endpoint_, parts.index, rank()),
      mailbox_(std::move(mailbox)),
      device_(parts.device),
      monitor_(parts.monitor),
      num_sent_(parts.ranks.size()),
      num_received_(parts.ranks.size()) {}

ShmGroup::~ShmGroup() {
  if (device_group_) monitor_->remove(*device_group_);
}

std::shared_future<void> ShmGroup::start(std::function<void()> call) {
  if (thread_ == nullptr) thread_ = &sync_.endpoint().make_call_thread();
  return thread_->start(std::move(call));
}

void ShmGroup::await(const std::shared_future<void>& done) {
  const bool is_on_device = done.wait_for(std::chrono::seconds(0)) == std::future_status::deferred;
  if (is_on_device) return done.get();
  thread_->await(done);
}

void ShmGroup::await_started() {
  if (thread_ != nullptr) thread_->await_all();
}

std::shared_future<void> ShmGroup::start_on_device(std::function<void()> call) {
  struct Queued {
    std::function<void()> call;  // owns the memory, so it ends last
    DeviceWorkPtr work;
  };
  const auto queued = std::make_shared<Queued>(Queued{.call = std::move(call), .work = nullptr});
  queued_ = &queued->work;
  try {
    queued->call();
  } catch (...) {
    queued_ = nullptr;
    throw;
  }
  queued_ = nullptr;
  const auto finish = [this, queued] {
    if (queued->work) await_work(*queued->work);
    *queued = {};
  };
  return std::async(std::launch::deferred, finish).share();
}

void ShmGroup::await_work(DeviceWork& work) {
  try {
    work.wait();
  } catch (const Error&) {
    sync_.endpoint().check();  // a failure of the job ends the device's collectives, too
    throw;
  }
}

void ShmGroup::finish_on_device(DeviceWorkPtr work) {
  if (queued_ != nullptr) {
    *queued_ = std::move(work);
  } else if (work) {
    await_work(*work);
  }
}

bool ShmGroup::is_single() const {
  if (size() > 1) return false;
  sync_.endpoint().check();
  return true;
}

void ShmGroup::copy_single(const void* in, void* out, int64_t bytes) const {
  if (bytes == 0 || in == out) return;
  if (is_on_device(in)) {
    device_->copy(out, in, static_cast<size_t>(bytes));
  } else {
    std::memmove(out, in, static_cast<size_t>(bytes));
  }
}

DeviceGroup* ShmGroup::device_for(const void* in, const void* out) {
  return is_on_device(in) || is_on_device(out) ? &device_group() : nullptr;
}

DeviceGroup& ShmGroup::device_group() {
  if (!device_group_) {
    device_group_ = device_->connect(*this);
    monitor_->add(*device_group_);
  }
  return *device_group_;
}

void ShmGroup::connect_messages() {
  if (std::exchange(knows_messages_, true) || size() == 1 || device_ == nullptr) return;
  has_messages_ = device_group().connect_messages(*this);
}

bool ShmGroup::stays_on_device(const void* data, int peer) const {
  return has_messages_ && is_on_device(data) && are_neighbours(rank(), peer, size());
}

template <class Pays>
HostLinks* ShmGroup::agree_on_links(int64_t bytes, const Pays& pays) {
  if (!sync_.is_between_hosts() || bytes < HostLayout::kMinLaneBytes) return nullptr;
  // Over TCP, two members on two hosts already send each byte once.
  if (size() == 2 && network_ == nullptr) return nullptr;
  if (knows_hosts_ && (!links_ || !pays(links_->layout))) return nullptr;
  sync_.agree();
  if (!knows_hosts_) {
    links_ = connect_hosts(sync_, endpoint_, host_, network_.get());
    knows_hosts_ = true;
  }
  return links_ && pays(links_->layout) ? links_.get() : nullptr;
}

void ShmGroup::check_member(int member, std::string_view role) const {
  CLEAVE_CHECK(member >= 0 && member < size(), Code::kUsage, role, "=", member, " on axis ", name(),
               "; it must be in [0, ", size(), ")");
}

void ShmGroup::check_widths(std::span<const int64_t> widths, std::string_view what) const {
  CLEAVE_CHECK(widths.size() == ranks().size(), Code::kUsage, widths.size(), " ", what, " on axis ",
               name(), "; give one for each of its ", size(), " ranks");
  for (const int64_t width : widths) check_count(width, what);
}

void ShmGroup::barrier(const Call& call) {
  if (is_single()) return;
  sync_.begin({.op = Op::kBarrier, .widths = {}, .call = call});
  sync_.agree();
  sync_.end();
}

void ShmGroup::all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                          const Call& call) {
  check_count(count, "all_reduce count");
  check_reducible(dtype, Op::kAllReduce);
  if (is_single()) return copy_single(in, out, count * item_bytes(dtype));
  DeviceGroup* const device = device_for(in, out);
  const Operation operation{Op::kAllReduce, dtype, count, op, -1, {}, call, device != nullptr};
  sync_.begin(operation, {in, out});
  const Buffers buffers{bytes_of(in), bytes_of(out)};
  const Algorithm algorithm = choose_algorithm(sync_, operation.op, count * item_bytes(dtype));
  const int64_t sum_bytes = count * item_bytes(accumulator_of(dtype));
  if (device != nullptr) {
    sync_.agree();
    finish_on_device(device->all_reduce(in, out, count, dtype, op));
  } else if (HostLinks* const links = agree_on_links(sum_bytes, [&](const HostLayout& layout) {
               return layout.pays_to_sum(sum_bytes);
             })) {
    host_all_reduce(*links, operation, buffers);
  } else if (algorithm == Algorithm::kDirect) {
    direct_all_reduce(sync_, operation);
  } else if (algorithm == Algorithm::kTwoShot) {
    two_shot_all_reduce(sync_, operation, buffers);
  } else {
    staged_all_reduce(sync_, operation, buffers);
  }
  sync_.end();
}

void ShmGroup::all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                          DType dtype, const Call& call) {
  check_count(rows, "all_gather rows");
  check_widths(widths, "all_gather widths");
  const Blocks blocks(rows, widths, item_bytes(dtype));
  const Buffers buffers{bytes_of(in), bytes_of(out)};
  if (is_single()) return copy_single(in, out, blocks.block_bytes(0));
  DeviceGroup* const device = device_for(in, out);
  sync_.begin({Op::kAllGather, dtype, rows, ReduceOp::kSum, -1, widths, call, device != nullptr},
              {in, out});
  if (device != nullptr) {
    sync_.agree();
    finish_on_device(device->all_gather(in, out, rows, widths, dtype));
  } else if (HostLinks* const links =
                 agree_on_links(rows * blocks.whole_row_bytes(), [&](const HostLayout& layout) {
                   return layout.pays_to_gather(largest_host_bytes(layout, blocks));
                 })) {
    host_all_gather(*links, blocks, buffers);
  } else if (choose_algorithm(sync_, Op::kAllGather, blocks.max_block_bytes()) ==
             Algorithm::kDirect) {
    direct_all_gather(sync_, blocks, buffers);
  } else {
    staged_all_gather(sync_, blocks, buffers);
  }
  sync_.end();
}

void ShmGroup::reduce_scatter(const void* in, void* out, int64_t rows,
                              std::span<const int64_t> widths, DType dtype, const Call& call) {
  check_count(rows, "reduce_scatter rows");
  check_widths(widths, "reduce_scatter widths");
  check_reducible(dtype, Op::kReduceScatter);
  const Blocks blocks(rows, widths, item_bytes(dtype));
  const Buffers buffers{bytes_of(in), bytes_of(out)};
  if (is_single()) return copy_single(in, out, blocks.block_bytes(0));
  DeviceGroup* const device = device_for(in, out);
  const Operation operation{Op::kReduceScatter, dtype, rows, ReduceOp::kSum, -1, widths, call,
                            device != nullptr};
  const int64_t sum_bytes =
      rows * blocks.whole_row_bytes() / item_bytes(dtype) * item_bytes(accumulator_of(dtype));
  sync_.begin(operation, {in, out});
  if (device != nullptr) {
    sync_.agree();
    finish_on_device(device->reduce_scatter(in, out, rows, widths, dtype));
  } else if (HostLinks* const links = agree_on_links(sum_bytes, [&](const HostLayout& layout) {
               return layout.pays_to_sum(sum_bytes);
             })) {
    host_reduce_scatter(*links, operation, blocks, buffers);
  } else if (choose_algorithm(sync_, operation.op, blocks.rows() * blocks.whole_row_bytes()) ==
             Algorithm::kDirect) {
    direct_reduce_scatter(sync_, operation, blocks, buffers);
  } else {
    staged_reduce_scatter(sync_, operation, blocks, buffers);
  }
  sync_.end();
}

void ShmGroup::broadcast(void* data, int64_t count, DType dtype, int root, const Call& call) {
  check_count(count, "broadcast count");
  check_member(root, "broadcast root");
  const int64_t bytes = count * item_bytes(dtype);
  const std::span span(bytes_of(data), static_cast<size_t>(bytes));
  if (is_single()) return;
  DeviceGroup* const device = device_for(data, data);
  sync_.begin({Op::kBroadcast, dtype, count, ReduceOp::kSum, root, {}, call, device != nullptr},
              {data, data});
  if (device != nullptr) {
    sync_.agree();
    finish_on_device(device->broadcast(data, count, dtype, root));
  } else if (HostLinks* const links = agree_on_links(
                 bytes, [&](const HostLayout& layout) { return layout.pays_to_gather(bytes); })) {
    host_broadcast(*links, root, span);
  } else if (choose_algorithm(sync_, Op::kBroadcast, bytes) == Algorithm::kDirect) {
    direct_broadcast(sync_, root, span);
  } else {
    staged_broadcast(sync_, root, span);
  }
  sync_.end();
}

void ShmGroup::all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                          std::span<const int64_t> recv_counts, DType dtype, const Call& call) {
  check_widths(send_counts, "all_to_all send_counts");
  check_widths(recv_counts, "all_to_all recv_counts");
  const auto send = times(send_counts, item_bytes(dtype));
  const auto recv = times(recv_counts, item_bytes(dtype));
  const Buffers buffers{bytes_of(in), bytes_of(out)};
  if (is_single()) {
    CLEAVE_CHECK(send == recv, Code::kDesync, "all_to_all on axis ", name(), " of one rank sends ",
                 send_counts[0], " elements and expects ", recv_counts[0], "; they must be equal");
    return copy_single(in, out, send[0]);
  }
  DeviceGroup* const device = device_for(in, out);
  sync_.begin({Op::kAllToAll, dtype, 0, ReduceOp::kSum, -1, {}, call, device != nullptr},
              {in, out});
  if (device != nullptr) {
    agree_on_all_to_all(sync_, {send, recv});
    finish_on_device(device->all_to_all(in, send_counts, out, recv_counts, dtype));
  } else {
    // Only the members together know the sizes, so all calls use the links if there are any.
    if (!knows_hosts_) {
      agree_on_links(HostLayout::kMinLaneBytes, [](const HostLayout& /*layout*/) { return true; });
    }
    run_all_to_all(sync_, {send, recv}, buffers, links_.get());
  }
  sync_.end();
}

void ShmGroup::send(const void* data, int64_t count, DType dtype, int to, const Call& call) {
  check_count(count, "send count");
  check_member(to, "send to");
  CLEAVE_CHECK(to != rank(), Code::kUsage, "send to=", to, " is the sending rank itself");
  RankEndpoint& endpoint = sync_.endpoint();
  endpoint.note_thread();
  const bool stays = stays_on_device(data, to);
  const Operation operation{Op::kSend, dtype, count, ReduceOp::kSum, -1, {}, call, stays};
  const auto peer = static_cast<size_t>(to);
  Message head;
  head.header = make_header(operation, sync_.group(), ++num_sent_[peer]);
  fill_note(head.note, operation);
  const uint64_t number = log_begin(endpoint.slot(), head.header, call.site);
  endpoint.check();
  const auto bytes = static_cast<size_t>(count * item_bytes(dtype));
  const std::byte* from = bytes_of(data);
  if (stays) {
    // The header comes first: the receiver starts its half of the message when it has read it.
    mailbox_->send(ranks()[peer], head, {});
    device_group_->send(data, count, dtype, to);
  } else {
    if (is_on_device(data)) {  // messages are buffered in CPU memory
      std::byte* const copy = copied_.get(*device_, bytes);
      device_->copy(copy, data, bytes);
      from = copy;
    }
    mailbox_->send(ranks()[peer], head, {from, bytes});
  }
  log_end(endpoint.slot(), number);
}

void ShmGroup::recv(void* data, int64_t count, DType dtype, int from, const Call& call) {
  check_count(count, "recv count");
  check_member(from, "recv from");
  CLEAVE_CHECK(from != rank(), Code::kUsage, "recv from=", from, " is the receiving rank itself");
  RankEndpoint& endpoint = sync_.endpoint();
  endpoint.note_thread();
  const bool stays = stays_on_device(data, from);
  const Operation operation{Op::kRecv, dtype, count, ReduceOp::kSum, -1, {}, call, stays};
  const auto peer = static_cast<size_t>(from);
  Message own;
  own.header = make_header(operation, sync_.group(), ++num_received_[peer]);
  fill_note(own.note, operation);
  const uint64_t number = log_begin(endpoint.slot(), own.header, call.site);
  endpoint.check();
  Message message = mailbox_->receive(ranks()[peer], sync_.group());
  if (message.header.dtype != own.header.dtype || message.header.count != own.header.count ||
      message.header.shape_hash != own.header.shape_hash ||
      message.header.on_device > own.header.on_device) {
    sync_.fail_desync(str("ranks ", ranks()[peer], " and ", endpoint.rank(), " differ on axis ",
                          name(), ": rank ", ranks()[peer], " calls ",
                          describe(message.header, message.note), "; rank ", endpoint.rank(),
                          " calls ", describe(own.header, own.note),
                          "; dtype, count, shape and device must be the same"));
  }
  if (message.header.on_device != 0) {
    if (const DeviceWorkPtr work = device_group_->recv(data, count, dtype, from)) await_work(*work);
  } else if (is_on_device(data)) {
    device_->copy(data, message.data.data(), message.data.size());
  } else if (!message.data.empty()) {
    std::memcpy(data, message.data.data(), message.data.size());
  }
  mailbox_->recycle(std::move(message.data));
  log_end(endpoint.slot(), number);
}

}  // namespace cleave::inline comm
