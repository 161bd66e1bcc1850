#include <algorithm>
#include <cstring>
#include <numeric>

#include "cleave/comm/collectives.h"
#include "cleave/comm/reduce.h"

namespace cleave {
namespace {

constexpr int64_t kLine = 64;
// Up to here one round trip with all bytes is faster than two with parts.
constexpr int64_t kSmallBytes = 16 << 10;

/// Meets at the first piece, where headers are compared, and only synchronises at later ones.
void next_piece(Exchange& exchange, bool is_first) {
  if (is_first) {
    exchange.meet();
  } else {
    exchange.sync();
  }
}

/// The piece of a block of `bytes` that begins at `from`, at most `limit` long; maybe empty.
int64_t piece_bytes(int64_t bytes, int64_t from, int64_t limit) {
  return std::clamp<int64_t>(bytes - from, 0, limit);
}

Gift gift_of(int64_t from, int64_t bytes) {
  return {static_cast<uint64_t>(from), static_cast<uint64_t>(bytes)};
}

std::span<std::byte> span_of(std::byte* data, int64_t bytes) {
  return {data, static_cast<size_t>(bytes)};
}

std::span<const std::byte> span_of(const std::byte* data, int64_t bytes) {
  return {data, static_cast<size_t>(bytes)};
}

/// Every member sums one part of a piece and gives the sum to all, so that each byte travels twice
/// however many members there are. For hosts: in shared memory, reading all is cheaper.
void parted_all_reduce(Exchange& exchange, const Operation& operation, const Buffers& buffers) {
  const int64_t n = exchange.num_members(), self = exchange.member();
  const int64_t bytes = operation.count * item_bytes(operation.dtype);
  const int64_t limit = exchange.payload_bytes() / n / kLine * kLine;
  std::vector<std::byte> sum(static_cast<size_t>(limit));
  std::vector<const void*> in(static_cast<size_t>(n));
  for (int64_t from = 0; from < bytes; from += n * limit) {
    const int64_t piece = piece_bytes(bytes, from, n * limit);
    const int64_t part = (piece + n * kLine - 1) / (n * kLine) * kLine;
    const auto bytes_of = [&](int64_t m) { return piece_bytes(piece, m * part, part); };
    std::memcpy(exchange.payload(), buffers.in + from, static_cast<size_t>(piece));
    for (int m = 0; m < n; ++m) exchange.give(m, gift_of(m * part, bytes_of(m)));
    next_piece(exchange, from == 0);
    for (int m = 0; m < n; ++m) {
      in[static_cast<size_t>(m)] = exchange.payload_of(m) + self * part;
    }
    void* out = sum.data();
    reduce(in, {&out, 1}, bytes_of(self) / item_bytes(operation.dtype), operation.dtype,
           operation.reduce_op);
    std::memcpy(exchange.payload() + self * part, out, static_cast<size_t>(bytes_of(self)));
    for (int m = 0; m < n; ++m) exchange.give(m, gift_of(self * part, bytes_of(self)));
    exchange.sync();
    for (int m = 0; m < n; ++m) {
      std::memcpy(buffers.out + from + m * part, exchange.payload_of(m) + m * part,
                  static_cast<size_t>(bytes_of(m)));
    }
  }
}

}  // namespace

void staged_all_reduce(Exchange& exchange, const Operation& operation, const Buffers& buffers) {
  const int64_t bytes = operation.count * item_bytes(operation.dtype);
  if (exchange.is_between_hosts() && exchange.num_members() > 2 && bytes > kSmallBytes) {
    return parted_all_reduce(exchange, operation, buffers);
  }
  std::vector<const void*> in(static_cast<size_t>(exchange.num_members()));
  int64_t from = 0;
  do {
    const int64_t size = piece_bytes(bytes, from, exchange.payload_bytes());
    if (size > 0) std::memcpy(exchange.payload(), buffers.in + from, static_cast<size_t>(size));
    exchange.give_all(size);
    next_piece(exchange, from == 0);
    for (int m = 0; m < exchange.num_members(); ++m) {
      in[static_cast<size_t>(m)] = exchange.payload_of(m);
    }
    void* out = buffers.out + from;
    reduce(in, {&out, 1}, size / item_bytes(operation.dtype), operation.dtype, operation.reduce_op);
    from += size;
  } while (from < bytes);
}

void staged_all_gather(Exchange& exchange, const Blocks& blocks, const Buffers& buffers) {
  const int64_t limit = exchange.payload_bytes(), end = blocks.max_block_bytes();
  const int self = exchange.member();
  // The own block may lie inside `out`: it is read before anything is written over it.
  const bool has_more = end > limit;
  const std::vector<std::byte> apart(buffers.in,
                                     buffers.in + (has_more ? blocks.block_bytes(self) : 0));
  const std::byte* own = has_more ? apart.data() : buffers.in;
  for (int64_t from = 0; from == 0 || from < end; from += limit) {
    const int64_t size = piece_bytes(blocks.block_bytes(self), from, limit);
    if (size > 0) std::memcpy(exchange.payload(), own + from, static_cast<size_t>(size));
    exchange.give_all(size);
    next_piece(exchange, from == 0);
    for (int m = 0; m < exchange.num_members(); ++m) {
      const int64_t got = piece_bytes(blocks.block_bytes(m), from, limit);
      blocks.put(buffers.out, m, from, span_of(exchange.payload_of(m), got));
    }
  }
}

void staged_reduce_scatter(Exchange& exchange, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers) {
  // A payload has one part for each member.
  const int64_t limit = exchange.payload_bytes() / exchange.num_members() / kLine * kLine;
  const int self = exchange.member();
  const int64_t end = blocks.max_block_bytes();
  std::vector<std::byte> result(static_cast<size_t>(blocks.block_bytes(self)));
  std::vector<const void*> in(static_cast<size_t>(exchange.num_members()));
  for (int64_t from = 0; from == 0 || from < end; from += limit) {
    for (int m = 0; m < exchange.num_members(); ++m) {
      const int64_t size = piece_bytes(blocks.block_bytes(m), from, limit);
      blocks.take(buffers.in, m, from, span_of(exchange.payload() + m * limit, size));
      exchange.give(m, gift_of(m * limit, size));
    }
    next_piece(exchange, from == 0);
    for (int m = 0; m < exchange.num_members(); ++m) {
      in[static_cast<size_t>(m)] = exchange.payload_of(m) + self * limit;
    }
    const int64_t size = piece_bytes(blocks.block_bytes(self), from, limit);
    void* out = result.data() + from;
    if (size > 0) {
      reduce(in, {&out, 1}, size / item_bytes(operation.dtype), operation.dtype,
             operation.reduce_op);
    }
  }
  // `out` may lie over `in`, which was needed until here.
  std::copy(result.begin(), result.end(), buffers.out);
}

void staged_broadcast(Exchange& exchange, int root, std::span<std::byte> data) {
  const auto bytes = static_cast<int64_t>(data.size());
  const int64_t limit = exchange.payload_bytes();
  const bool is_root = exchange.member() == root;
  for (int64_t from = 0; from == 0 || from < bytes; from += limit) {
    const auto size = static_cast<size_t>(piece_bytes(bytes, from, limit));
    if (is_root && size > 0) std::memcpy(exchange.payload(), data.data() + from, size);
    exchange.give_all(is_root ? static_cast<int64_t>(size) : 0);
    next_piece(exchange, from == 0);
    if (!is_root && size > 0) std::memcpy(data.data() + from, exchange.payload_of(root), size);
  }
}

std::vector<int64_t> meet_all_to_all(Exchange& exchange, const Traffic& traffic) {
  const auto n = static_cast<size_t>(exchange.num_members());
  std::memcpy(exchange.payload(), traffic.send.data(), n * sizeof(int64_t));
  std::memcpy(exchange.payload() + n * sizeof(int64_t), traffic.recv.data(), n * sizeof(int64_t));
  exchange.give_all(static_cast<int64_t>(2 * n * sizeof(int64_t)));
  exchange.meet();
  std::vector<int64_t> sent(n * n), awaited(n * n);  // [from][to], [to][from]
  for (size_t m = 0; m < n; ++m) {
    const std::byte* sizes = exchange.payload_of(static_cast<int>(m));
    std::memcpy(&sent[m * n], sizes, n * sizeof(int64_t));
    std::memcpy(&awaited[m * n], sizes + n * sizeof(int64_t), n * sizeof(int64_t));
  }
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      const int64_t gives = sent[from * n + to], takes = awaited[to * n + from];
      if (gives == takes) continue;
      const auto ranks = exchange.end_of_rank().page().group_ranks(
          exchange.end_of_rank().page().group(exchange.group()));
      exchange.refuse(str("all_to_all on axis ",
                          exchange.end_of_rank().page().group(exchange.group()).name, ": rank ",
                          ranks[from], " sends ", gives, " bytes to rank ", ranks[to],
                          ", which awaits ", takes, " bytes; these must be alike"));
    }
  }
  return sent;
}

void staged_all_to_all(Exchange& exchange, const Traffic& traffic, const Buffers& buffers) {
  const std::vector<int64_t> sent = meet_all_to_all(exchange, traffic);
  const auto n = static_cast<size_t>(exchange.num_members());
  const auto self = static_cast<size_t>(exchange.member());
  const int64_t limit = exchange.payload_bytes() / exchange.num_members() / kLine * kLine;
  const int64_t end = *std::max_element(sent.begin(), sent.end());
  std::vector<std::byte> result(
      static_cast<size_t>(std::accumulate(traffic.recv.begin(), traffic.recv.end(), int64_t{0})));
  for (int64_t from = 0; from < end; from += limit) {
    const std::byte* in = buffers.in;
    for (size_t m = 0; m < n; ++m) {
      const auto size = static_cast<size_t>(piece_bytes(traffic.send[m], from, limit));
      const auto place = static_cast<int64_t>(m) * limit;
      if (size > 0) std::memcpy(exchange.payload() + place, in + from, size);
      exchange.give(static_cast<int>(m), {static_cast<uint64_t>(place), size});
      in += traffic.send[m];
    }
    exchange.sync();
    std::byte* out = result.data();
    for (size_t m = 0; m < n; ++m) {
      const auto size = static_cast<size_t>(piece_bytes(traffic.recv[m], from, limit));
      const std::byte* part =
          exchange.payload_of(static_cast<int>(m)) + static_cast<int64_t>(self) * limit;
      if (size > 0) std::memcpy(out + from, part, size);
      out += traffic.recv[m];
    }
  }
  std::copy(result.begin(), result.end(), buffers.out);
}

}  // namespace cleave
