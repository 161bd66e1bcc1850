#include <algorithm>
#include <cstring>

#include "cleave/comm/collectives.h"
#include "cleave/comm/overlap.h"
#include "cleave/comm/reduce.h"

namespace cleave {

void direct_all_reduce(Exchange& exchange, const Operation& operation) {
  constexpr int64_t kUnit = 64;  // elements: members write whole cache lines
  const int64_t item = item_bytes(operation.dtype), n = exchange.num_members();
  const int64_t units = (operation.count + kUnit - 1) / kUnit;
  const int64_t begin = std::min(units * exchange.member() / n * kUnit, operation.count);
  const int64_t end = std::min(units * (exchange.member() + 1) / n * kUnit, operation.count);
  exchange.meet();
  const auto in = exchange.direct_inputs(begin * item);
  const auto out = exchange.direct_outputs(begin * item);
  exchange.begin_touch();
  reduce(in, out, end - begin, operation.dtype, operation.reduce_op);
  exchange.end_touch();
  exchange.sync();
}

void direct_all_gather(Exchange& exchange, const Blocks& blocks, const Buffers& buffers) {
  const int64_t whole = blocks.rows() * blocks.whole_row_bytes();
  Result result(buffers, blocks.block_bytes(exchange.member()), whole);
  exchange.meet();
  const auto in = exchange.direct_inputs(0);
  exchange.begin_touch();
  for (int m = 0; m < exchange.num_members(); ++m) {
    const auto size = static_cast<size_t>(blocks.block_bytes(m));
    const auto* block = static_cast<const std::byte*>(in[static_cast<size_t>(m)]);
    blocks.put(result.data(), m, 0, {block, size});
  }
  exchange.end_touch();
  exchange.sync();
  result.finish();
}

void direct_reduce_scatter(Exchange& exchange, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers) {
  const int self = exchange.member();
  const int64_t width = blocks.row_bytes(self), whole = blocks.whole_row_bytes();
  const int64_t count = width / item_bytes(operation.dtype);
  Result result(buffers, blocks.rows() * whole, blocks.block_bytes(self));
  exchange.meet();
  exchange.begin_touch();
  for (int64_t row = 0; row < blocks.rows() && width > 0; ++row) {
    const auto in = exchange.direct_inputs(row * whole + blocks.begin(self));
    void* out = result.data() + row * width;
    reduce(in, {&out, 1}, count, operation.dtype, operation.reduce_op);
  }
  exchange.end_touch();
  exchange.sync();
  result.finish();
}

void direct_broadcast(Exchange& exchange, int root, std::span<std::byte> data) {
  exchange.meet();
  if (exchange.member() != root) {
    const void* const from = exchange.direct_inputs(0)[static_cast<size_t>(root)];
    exchange.begin_touch();
    std::memcpy(data.data(), from, data.size());
    exchange.end_touch();
  }
  exchange.sync();
}

}  // namespace cleave
