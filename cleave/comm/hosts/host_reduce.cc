#include <algorithm>
#include <cstring>
#include <vector>

#include "cleave/comm/api/overlap.h"
#include "cleave/comm/hosts/host_collectives.h"
#include "cleave/comm/hosts/packed_stream.h"
#include "cleave/comm/shm/collectives.h"

// A sum over hosts is a pipeline. At step t, host h adds its members' values of piece t - h to the
// accumulators that it received at the exchange of step t - 1, and sends the sum to host h + 1. The
// last host has the results. In an all-reduce they go back from host to host, so that no host sends
// them more than once; in a reduce-scatter the last host sends each host its own.
//
// An exchange's buffer has two parts: accumulators at 0, results at results_at_.
//
// Where each host has one member, a chain would send more bytes than pairs do: PairReduce.
// Where the network adds itself, in an order of its own, each host adds its values first: FastSum.

namespace cleave::inline comm {
namespace {

constexpr int64_t kMaxPieceBytes = HostExchange::kBufferBytes / 2;  // of accumulators

/// Bytes of a piece: as many as fill the pipeline, within limits.
int64_t choose_piece(const HostLayout& layout, int64_t bytes, int64_t item, int64_t accumulator) {
  const int64_t limit = kMaxPieceBytes * item / accumulator;
  const int64_t least = HostLayout::kMinLaneBytes * item / accumulator;
  const int64_t filling = bytes / layout.num_lanes / layout.num_links();
  return round_up_to_line(std::clamp(filling, least, limit));
}

/// One all-reduce or reduce-scatter of one member.
class HostReduce {
 public:
  HostReduce(HostLinks& links, const Operation& operation, const Blocks& blocks, bool to_all)
      : links_(links),
        layout_(links.layout),
        operation_(operation),
        item_(item_bytes(operation.dtype)),
        accumulator_(item_bytes(accumulator_of(operation.dtype))),
        to_all_(to_all),
        last_(layout_.num_hosts() - 1),
        stream_(blocks),
        pieces_(stream_.whole(), layout_.num_lanes,
                choose_piece(layout_, stream_.whole().size(), item_, accumulator_)),
        results_at_(widened(pieces_.piece())),
        part_(links.buffers->bytes() / (layout_.num_lanes + 1) / 64 * 64) {
    for (int host = 0; host <= last_; ++host) {
      wanted_.push_back(
          to_all ? stream_.whole()
                 : stream_.of_members(layout_.first_of(host), layout_.first_of(host + 1)));
    }
    own_ = to_all ? stream_.whole()
                  : stream_.of_member(layout_.first_of(layout_.host) + layout_.local);
  }

  /// `out` gets the results that this member wants, packed.
  void run(const std::byte* in, std::byte* out) {
    if (pieces_.count() == 0) return;
    const int64_t longest = to_all_ ? last_ : 1;
    const int64_t num_exchanges = pieces_.count() - 1 + last_ + longest;
    for (int64_t step = 0; step <= num_exchanges; ++step) {
      for (int64_t from = 0; from < pieces_.piece(); from += part_) {
        work_on_host(step, {from, from + part_}, in, out);
      }
      if (layout_.has_lane() && step < num_exchanges) exchange(step);
    }
  }

 private:
  /// The piece whose accumulators a host computes at this step.
  [[nodiscard]] static int64_t summed_at(int host, int64_t step) { return step - host; }
  /// The piece whose results a host holds at the begin of this step.
  [[nodiscard]] int64_t held_at(int host, int64_t step) const {
    const int way = to_all_ ? std::max(1, last_ - host) : 1;
    return step - last_ - way;
  }
  [[nodiscard]] bool is_piece(int64_t index) const { return index >= 0 && index < pieces_.count(); }
  /// Bytes of accumulators of so many bytes of elements.
  [[nodiscard]] int64_t widened(int64_t bytes) const { return bytes / item_ * accumulator_; }
  /// Where a byte of a lane's piece stands among the results in an exchange's buffer.
  [[nodiscard]] int64_t result_place(int lane, int64_t piece, int64_t at) const {
    return results_at_ + at - pieces_.at(lane, piece).begin;
  }

  /// The part `within` of the pieces that are in work: members show their values and the results
  /// that came; the lanes' members add.
  void work_on_host(int64_t step, const StreamRange& within, const std::byte* in, std::byte* out) {
    const int64_t summed = summed_at(layout_.host, step), held = held_at(layout_.host, step);
    if (!is_piece(summed) && !is_piece(held)) return;
    std::byte* const own = links_.buffers->own();
    for (int lane = 0; lane < layout_.num_lanes; ++lane) {
      stream_.pack(in, pieces_.at(lane, summed, within), own + lane * part_);
    }
    if (layout_.has_lane()) copy_held(held, within, own + layout_.num_lanes * part_);
    links_.buffers->publish();
    for (int lane = 0; lane < layout_.num_lanes; ++lane) {
      const StreamRange shown = results(layout_.host, lane, held, within);
      const StreamRange mine = intersect(shown, own_);
      if (mine.is_empty()) continue;
      const std::byte* const from = links_.buffers->of(lane) + layout_.num_lanes * part_;
      std::memcpy(out + (mine.begin - own_.begin), from + (mine.begin - shown.begin),
                  static_cast<size_t>(mine.size()));
    }
    if (layout_.has_lane()) sum(summed, within);
  }

  /// The bytes whose results a host wants, of the part `within` of a lane's piece.
  [[nodiscard]] StreamRange results(int host, int lane, int64_t piece,
                                    const StreamRange& within) const {
    return intersect(pieces_.at(lane, piece, within), wanted_[static_cast<size_t>(host)]);
  }

  /// The host that sends results to this one; the last host has them itself.
  [[nodiscard]] int source() const { return to_all_ ? std::min(layout_.host + 1, last_) : last_; }

  void copy_held(int64_t piece, const StreamRange& within, std::byte* to) const {
    const StreamRange range = results(layout_.host, layout_.local, piece, within);
    if (range.is_empty()) return;
    const int64_t place = result_place(layout_.local, piece, range.begin);
    std::memcpy(to, links_.exchange->received(source()) + place, static_cast<size_t>(range.size()));
  }

  /// Adds the host's values of this lane.
  void sum(int64_t piece, const StreamRange& within) {
    const StreamRange range = pieces_.at(layout_.local, piece, within);
    if (range.is_empty()) return;
    inputs_.clear();
    for (int m = 0; m < layout_.num_local(); ++m) {
      inputs_.push_back(links_.buffers->of(m) + layout_.local * part_);
    }
    HostExchange& exchange = *links_.exchange;
    const int64_t place = widened(range.begin - pieces_.at(layout_.local, piece).begin);
    ReductionPart part;
    part.is_last = layout_.host == last_;
    if (layout_.host > 0) part.before = exchange.received(layout_.host - 1) + place;
    std::byte* const to = exchange.buffer() +
                          (part.is_last ? result_place(layout_.local, piece, range.begin) : place);
    reduce_part(inputs_, part, to, range.size() / item_, operation_.dtype, operation_.reduce_op);
  }

  /// What host `a` sends to host `b` at a step, in the exchange's buffer.
  [[nodiscard]] ByteRange sent(int64_t step, int a, int b) const {
    const int lane = layout_.local;
    if (b == a + 1) return {0, widened(pieces_.at(lane, summed_at(a, step)).size())};
    if (to_all_ ? b != a - 1 : a != last_) return {};
    const int64_t piece = a == last_ ? summed_at(a, step) : held_at(a, step);
    const StreamRange range = intersect(pieces_.at(lane, piece), wanted_[static_cast<size_t>(b)]);
    if (range.is_empty()) return {};
    return {result_place(lane, piece, range.begin), range.size()};
  }

  void exchange(int64_t step) {
    const int host = layout_.host, lane = layout_.local;
    HostExchange& exchange = *links_.exchange;
    const int64_t held = held_at(host, step);
    if (to_all_ && host > 0 && host < last_ && is_piece(held)) {
      std::memcpy(exchange.buffer() + results_at_, exchange.received(source()) + results_at_,
                  static_cast<size_t>(pieces_.at(lane, held).size()));
    }
    std::vector<ByteRange> to, from;
    for (int other = 0; other <= last_; ++other) {
      to.push_back(other == host ? ByteRange{} : sent(step, host, other));
      from.push_back(other == host ? ByteRange{} : sent(step, other, host));
    }
    exchange.exchange(to, from);
  }

  HostLinks& links_;
  const HostLayout& layout_;
  const Operation& operation_;
  int64_t item_, accumulator_;
  bool to_all_;  // an all-reduce
  int last_;     // host
  PackedStream stream_;
  LanePieces pieces_;  // in bytes of elements
  int64_t results_at_;
  int64_t part_;                     // of a host's buffer: one for each lane, one for results
  std::vector<StreamRange> wanted_;  // results, by host
  StreamRange own_;                  // results that this member wants
  std::vector<const void*> inputs_;
};

/// The same with one member on each host: each adds all values of its part, in rank order.
class PairReduce {
 public:
  PairReduce(HostLinks& links, const Operation& operation)
      : exchange_(*links.exchange),
        operation_(operation),
        num_hosts_(links.layout.num_hosts()),
        self_(links.layout.host),
        limit_(HostExchange::kBufferBytes / num_hosts_ / 64 * 64) {}

  void all_reduce(const Buffers& buffers, int64_t bytes) {
    for (int64_t from = 0; from < bytes; from += num_hosts_ * limit_) {
      const int64_t piece = std::min(bytes - from, num_hosts_ * limit_);
      const int64_t part = round_up_to_line((piece + num_hosts_ - 1) / num_hosts_);
      const auto range_of = [&](int host) {
        const int64_t at = std::min(host * part, piece);
        return ByteRange{at, std::min(piece - at, part)};
      };
      std::memcpy(exchange_.buffer(), buffers.in + from, static_cast<size_t>(piece));
      send([&](int host) { return range_of(host); }, [&](int /*host*/) { return range_of(self_); });
      const auto [begin, own_bytes] = range_of(self_);
      reduce_parts(begin, own_bytes, buffers.out + from + begin);
      if (own_bytes > 0) {
        std::memcpy(exchange_.buffer() + begin, buffers.out + from + begin,
                    static_cast<size_t>(own_bytes));
      }
      send([&](int /*host*/) { return range_of(self_); }, [&](int host) { return range_of(host); });
      for (int host = 0; host < num_hosts_; ++host) {
        const auto [at, size] = range_of(host);
        if (host == self_ || size == 0) continue;
        std::memcpy(buffers.out + from + at, exchange_.received(host) + at,
                    static_cast<size_t>(size));
      }
    }
  }

  /// `out` gets this member's sums, packed.
  void reduce_scatter(const Blocks& blocks, const std::byte* in, std::byte* out) {
    for (int64_t from = 0; from < blocks.max_block_bytes(); from += limit_) {
      const auto range_of = [&](int host) {
        return ByteRange{host * limit_,
                         std::clamp<int64_t>(blocks.block_bytes(host) - from, 0, limit_)};
      };
      for (int host = 0; host < num_hosts_; ++host) {
        const auto [at, size] = range_of(host);
        blocks.pack(in, host, from, {exchange_.buffer() + at, static_cast<size_t>(size)});
      }
      send([&](int host) { return range_of(host); }, [&](int /*host*/) { return range_of(self_); });
      reduce_parts(range_of(self_).begin, range_of(self_).bytes, out + from);
    }
  }

 private:
  template <class To, class From>
  void send(const To& to_host, const From& from_host) {
    std::vector<ByteRange> to, from;
    for (int host = 0; host < num_hosts_; ++host) {
      to.push_back(host == self_ ? ByteRange{} : to_host(host));
      from.push_back(host == self_ ? ByteRange{} : from_host(host));
    }
    exchange_.exchange(to, from);
  }

  void reduce_parts(int64_t at, int64_t bytes, void* out) {
    if (bytes == 0) return;
    std::vector<const void*> inputs;
    inputs.reserve(static_cast<size_t>(num_hosts_));
    for (int host = 0; host < num_hosts_; ++host) inputs.push_back(exchange_.received(host) + at);
    reduce(inputs, {&out, 1}, bytes / item_bytes(operation_.dtype), operation_.dtype,
           operation_.reduce_op);
  }

  HostExchange& exchange_;
  const Operation& operation_;
  int num_hosts_, self_;
  int64_t limit_;  // bytes of one host's part of a buffer
};

/// An all-reduce in which the exchange adds the sums of the hosts.
class FastSum {
 public:
  FastSum(HostLinks& links, const Operation& operation)
      : links_(links),
        layout_(links.layout),
        dtype_(operation.dtype),
        pieces_({0, operation.count * item_bytes(dtype_)}, layout_.num_lanes,
                HostExchange::kBufferBytes),
        part_(links.buffers->bytes() / layout_.num_lanes / 64 * 64) {}

  void run(const Buffers& buffers) {
    for (int64_t index = 0; index < pieces_.count(); ++index) {
      for_each_part(index,
                    [&](const StreamRange& within) { sum_on_host(index, within, buffers.in); });
      const int64_t bytes = pieces_.at(layout_.local, index).size();
      if (layout_.has_lane() && bytes > 0) links_.exchange->sum(bytes, dtype_);
      for_each_part(index,
                    [&](const StreamRange& within) { show_sums(index, within, buffers.out); });
    }
  }

 private:
  /// Calls work(within) for the parts of a piece that pass through the host's memory.
  template <class Work>
  void for_each_part(int64_t index, const Work& work) const {
    const int64_t size = pieces_.at(0, index).size();  // lane 0 is never shorter
    const int64_t part = layout_.num_local() == 1 ? size : part_;
    for (int64_t from = 0; from < size; from += part) {
      work(StreamRange{from, from + part});
    }
  }

  void sum_on_host(int64_t index, const StreamRange& within, const std::byte* in) {
    const StreamRange mine = own(index, within);
    if (layout_.num_local() == 1) return copy(links_.exchange->buffer(), in, mine);
    for (int lane = 0; lane < layout_.num_lanes; ++lane) {
      copy(links_.buffers->own() + lane * part_, in, pieces_.at(lane, index, within));
    }
    links_.buffers->publish();
    if (mine.is_empty()) return;
    std::vector<const void*> inputs;
    inputs.reserve(static_cast<size_t>(layout_.num_local()));
    for (int m = 0; m < layout_.num_local(); ++m) {
      inputs.push_back(links_.buffers->of(m) + layout_.local * part_);
    }
    void* const to = links_.exchange->buffer() + within.begin;
    reduce(inputs, {&to, 1}, mine.size() / item_bytes(dtype_), dtype_, ReduceOp::kSum);
  }

  void show_sums(int64_t index, const StreamRange& within, std::byte* out) {
    const StreamRange mine = own(index, within);
    std::byte* const to = layout_.num_local() == 1 ? out + mine.begin : links_.buffers->own();
    if (!mine.is_empty()) {
      std::memcpy(to, links_.exchange->buffer() + within.begin, static_cast<size_t>(mine.size()));
    }
    if (layout_.num_local() == 1) return;
    links_.buffers->publish();
    for (int lane = 0; lane < layout_.num_lanes; ++lane) {
      const StreamRange range = pieces_.at(lane, index, within);
      if (range.is_empty()) continue;
      std::memcpy(out + range.begin, links_.buffers->of(lane), static_cast<size_t>(range.size()));
    }
  }

  /// What this member's lane has of a part; empty for a member without a lane.
  [[nodiscard]] StreamRange own(int64_t index, const StreamRange& within) const {
    return layout_.has_lane() ? pieces_.at(layout_.local, index, within) : StreamRange{};
  }

  static void copy(std::byte* to, const std::byte* in, const StreamRange& range) {
    if (!range.is_empty()) std::memcpy(to, in + range.begin, static_cast<size_t>(range.size()));
  }

  HostLinks& links_;
  const HostLayout& layout_;
  DType dtype_;
  LanePieces pieces_;  // in bytes
  int64_t part_;       // of a host's buffer: one for each lane
};

bool has_one_member_each(const HostLayout& layout) {
  return layout.num_hosts() == layout.first.back();
}

}  // namespace

void host_all_reduce(HostLinks& links, const Operation& operation, const Buffers& buffers) {
  // Integers have one sum in any order; MPI has no bf16 and fp16.
  const bool is_float = operation.dtype == DType::kF32 || operation.dtype == DType::kF64;
  if (links.fast_sums && is_float && operation.reduce_op == ReduceOp::kSum) {
    return FastSum(links, operation).run(buffers);
  }
  if (has_one_member_each(links.layout)) {
    const int64_t bytes = operation.count * item_bytes(operation.dtype);
    return PairReduce(links, operation).all_reduce(buffers, bytes);
  }
  const Blocks blocks(1, {&operation.count, 1}, item_bytes(operation.dtype));
  HostReduce(links, operation, blocks, true).run(buffers.in, buffers.out);
}

void host_reduce_scatter(HostLinks& links, const Operation& operation, const Blocks& blocks,
                         const Buffers& buffers) {
  const int self = links.layout.first_of(links.layout.host) + links.layout.local;
  Result result(buffers, blocks.rows() * blocks.whole_row_bytes(), blocks.block_bytes(self));
  if (has_one_member_each(links.layout)) {
    PairReduce(links, operation).reduce_scatter(blocks, buffers.in, result.data());
  } else {
    HostReduce(links, operation, blocks, false).run(buffers.in, result.data());
  }
  result.finish();
}

}  // namespace cleave::inline comm
