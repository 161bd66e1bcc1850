#include <algorithm>
#include <cstring>

#include "cleave/comm/api/overlap.h"
#include "cleave/comm/shm/collectives.h"

namespace cleave::inline comm {

void direct_all_reduce(CollectiveSync& sync, const Operation& operation) {
  constexpr int64_t kUnit = 64;  // elements: members write whole cache lines
  const int64_t item = item_bytes(operation.dtype), n = sync.num_members();
  const int64_t units = (operation.count + kUnit - 1) / kUnit;
  const int64_t begin = std::min(units * sync.member() / n * kUnit, operation.count);
  const int64_t end = std::min(units * (sync.member() + 1) / n * kUnit, operation.count);
  sync.agree();
  const auto in = sync.direct_inputs(begin * item);
  const auto out = sync.direct_outputs(begin * item);
  sync.begin_touch();
  reduce(in, out, end - begin, operation.dtype, operation.reduce_op);
  sync.end_touch();
  sync.barrier();
}

void direct_all_gather(CollectiveSync& sync, const Blocks& blocks, const Buffers& buffers) {
  const int64_t whole = blocks.rows() * blocks.whole_row_bytes();
  Result result(buffers, blocks.block_bytes(sync.member()), whole);
  sync.agree();
  const auto in = sync.direct_inputs(0);
  sync.begin_touch();
  for (int m = 0; m < sync.num_members(); ++m) {
    const auto size = static_cast<size_t>(blocks.block_bytes(m));
    const auto* block = static_cast<const std::byte*>(in[static_cast<size_t>(m)]);
    blocks.unpack(result.data(), m, 0, {block, size});
  }
  sync.end_touch();
  sync.barrier();
  result.finish();
}

void direct_reduce_scatter(CollectiveSync& sync, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers) {
  const int self = sync.member();
  const int64_t width = blocks.row_bytes(self), whole = blocks.whole_row_bytes();
  const int64_t count = width / item_bytes(operation.dtype);
  Result result(buffers, blocks.rows() * whole, blocks.block_bytes(self));
  sync.agree();
  sync.begin_touch();
  for (int64_t row = 0; row < blocks.rows() && width > 0; ++row) {
    const auto in = sync.direct_inputs(row * whole + blocks.begin(self));
    void* out = result.data() + row * width;
    reduce(in, {&out, 1}, count, operation.dtype, operation.reduce_op);
  }
  sync.end_touch();
  sync.barrier();
  result.finish();
}

void direct_broadcast(CollectiveSync& sync, int root, std::span<std::byte> data) {
  sync.agree();
  if (sync.member() != root) {
    const void* const from = sync.direct_inputs(0)[static_cast<size_t>(root)];
    sync.begin_touch();
    std::memcpy(data.data(), from, data.size());
    sync.end_touch();
  }
  sync.barrier();
}

}  // namespace cleave::inline comm
