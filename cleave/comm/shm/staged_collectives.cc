#include <algorithm>
#include <cstring>

#include "cleave/comm/api/overlap.h"
#include "cleave/comm/shm/collectives.h"

// Payloads are double-buffered: while peers read one buffer, the next piece is written to the
// other. A piece fills a quarter of an L2 cache, so it is still cached when it is read.

namespace cleave::inline comm {
namespace {

constexpr int64_t kLine = 64;

/// Synchronizes the members; compares headers only at the first piece.
void next_piece(CollectiveSync& sync, bool is_first) {
  if (is_first) {
    sync.agree();
  } else {
    sync.barrier();
  }
}

/// Size of the piece at `from` of a block of `bytes`: at most `limit`, maybe 0.
int64_t piece_bytes(int64_t bytes, int64_t from, int64_t limit) {
  return std::clamp<int64_t>(bytes - from, 0, limit);
}

SendRange send_range(int64_t from, int64_t bytes) {
  return {static_cast<uint64_t>(from), static_cast<uint64_t>(bytes)};
}

std::span<std::byte> span_of(std::byte* data, int64_t bytes) {
  return {data, static_cast<size_t>(bytes)};
}

std::span<const std::byte> span_of(const std::byte* data, int64_t bytes) {
  return {data, static_cast<size_t>(bytes)};
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

void staged_all_reduce(CollectiveSync& sync, const Operation& operation, const Buffers& buffers) {
  const int64_t item = item_bytes(operation.dtype), bytes = operation.count * item;
  int64_t from = 0;
  do {
    const int64_t size = piece_bytes(bytes, from, sync.payload_bytes());
    copy_bytes(sync.payload(), buffers.in + from, size);
    sync.declare_send_all(size);
    next_piece(sync, from == 0);
    const auto in = sync.payloads(0);
    in[static_cast<size_t>(sync.member())] = buffers.in + from;
    void* out = buffers.out + from;
    reduce(in, {&out, 1}, size / item, operation.dtype, operation.reduce_op);
    from += size;
  } while (from < bytes);
}

void two_shot_all_reduce(CollectiveSync& sync, const Operation& operation, const Buffers& buffers) {
  const int64_t n = sync.num_members(), self = sync.member();
  const int64_t item = item_bytes(operation.dtype), bytes = operation.count * item;
  const int64_t limit = sync.payload_bytes() / n / kLine * kLine;
  for (int64_t from = 0; from < bytes; from += n * limit) {
    const int64_t piece = piece_bytes(bytes, from, n * limit);
    const int64_t part = (piece + n * kLine - 1) / (n * kLine) * kLine;
    const auto bytes_of = [&](int64_t m) { return piece_bytes(piece, m * part, part); };
    const int64_t own = bytes_of(self), after = std::min(piece, (self + 1) * part);
    copy_bytes(sync.payload(), buffers.in + from, std::min(piece, self * part));
    copy_bytes(sync.payload() + after, buffers.in + from + after, piece - after);
    for (int m = 0; m < n; ++m) sync.declare_send(m, send_range(m * part, bytes_of(m)));
    next_piece(sync, from == 0);
    const auto in = sync.payloads(self * part);
    in[static_cast<size_t>(self)] = buffers.in + from + self * part;
    void* const out[] = {sync.payload() + self * part, buffers.out + from + self * part};
    if (own > 0) reduce(in, out, own / item, operation.dtype, operation.reduce_op);
    for (int m = 0; m < n; ++m) sync.declare_send(m, send_range(self * part, own));
    sync.barrier();
    // The next member first, so that not all read from member 0 at the same time.
    for (int64_t i = 1; i < n; ++i) {
      const int64_t m = (self + i) % n;
      copy_bytes(buffers.out + from + m * part, sync.payload_of(static_cast<int>(m)) + m * part,
                 bytes_of(m));
    }
  }
}

void staged_all_gather(CollectiveSync& sync, const Blocks& blocks, const Buffers& buffers) {
  const int64_t limit = sync.payload_bytes(), end = blocks.max_block_bytes();
  const int self = sync.member();
  const int64_t own_bytes = blocks.block_bytes(self);
  const KeptInput own(buffers, own_bytes, blocks.rows() * blocks.whole_row_bytes());
  for (int64_t from = 0; from == 0 || from < end; from += limit) {
    const int64_t size = piece_bytes(own_bytes, from, limit);
    copy_bytes(sync.payload(), own.data() + from, size);
    sync.declare_send_all(size);
    next_piece(sync, from == 0);
    for (int m = 0; m < sync.num_members(); ++m) {
      const int64_t got = piece_bytes(blocks.block_bytes(m), from, limit);
      const std::byte* piece = m == self ? own.data() + from : sync.payload_of(m);
      blocks.unpack(buffers.out, m, from, span_of(piece, got));
    }
  }
}

void staged_reduce_scatter(CollectiveSync& sync, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers) {
  // A payload has one part for each member.
  const int64_t limit = sync.payload_bytes() / sync.num_members() / kLine * kLine;
  const int self = sync.member();
  const int64_t end = blocks.max_block_bytes();
  // `out` may overlap `in`, which is read until the last piece.
  Result result(buffers, end > limit ? blocks.rows() * blocks.whole_row_bytes() : 0,
                blocks.block_bytes(self));
  for (int64_t from = 0; from == 0 || from < end; from += limit) {
    for (int m = 0; m < sync.num_members(); ++m) {
      const int64_t size = piece_bytes(blocks.block_bytes(m), from, limit);
      blocks.pack(buffers.in, m, from, span_of(sync.payload() + m * limit, size));
      sync.declare_send(m, send_range(m * limit, size));
    }
    next_piece(sync, from == 0);
    const int64_t size = piece_bytes(blocks.block_bytes(self), from, limit);
    void* out = result.data() + from;
    if (size > 0) {
      reduce(sync.payloads(self * limit), {&out, 1}, size / item_bytes(operation.dtype),
             operation.dtype, operation.reduce_op);
    }
  }
  result.finish();
}

void staged_broadcast(CollectiveSync& sync, int root, std::span<std::byte> data) {
  const auto bytes = static_cast<int64_t>(data.size());
  const int64_t limit = sync.payload_bytes();
  const bool is_root = sync.member() == root;
  for (int64_t from = 0; from == 0 || from < bytes; from += limit) {
    const int64_t size = piece_bytes(bytes, from, limit);
    if (is_root) copy_bytes(sync.payload(), data.data() + from, size);
    sync.declare_send_all(is_root ? size : 0);
    next_piece(sync, from == 0);
    if (!is_root) copy_bytes(data.data() + from, sync.payload_of(root), size);
  }
}

}  // namespace cleave::inline comm
