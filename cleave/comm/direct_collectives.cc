#include <algorithm>
#include <cstring>
#include <numeric>

#include "cleave/comm/collectives.h"
#include "cleave/comm/reduce.h"

namespace cleave {
namespace {

const std::byte* input_of(const Exchange& exchange, int member) {
  return static_cast<const std::byte*>(exchange.direct_of(member).in);
}

/// Where a result is written: `out` itself, or, where it lies over memory that peers still read,
/// memory of its own that finish() copies to `out` after they are done.
class Result {
 public:
  Result(const Buffers& buffers, int64_t in_bytes, int64_t out_bytes) : out_(buffers.out) {
    const bool overlaps =
        buffers.in < buffers.out + out_bytes && buffers.out < buffers.in + in_bytes;
    if (overlaps) apart_.resize(static_cast<size_t>(out_bytes));
  }
  [[nodiscard]] std::byte* data() { return apart_.empty() ? out_ : apart_.data(); }
  void finish() { std::copy(apart_.begin(), apart_.end(), out_); }

 private:
  std::byte* out_;
  std::vector<std::byte> apart_;
};

}  // namespace

void direct_all_reduce(Exchange& exchange, const Operation& operation) {
  constexpr int64_t kUnit = 64;  // elements: members write whole cache lines
  const int64_t item = item_bytes(operation.dtype), n = exchange.num_members();
  const int64_t units = (operation.count + kUnit - 1) / kUnit;
  const int64_t begin = std::min(units * exchange.member() / n * kUnit, operation.count);
  const int64_t end = std::min(units * (exchange.member() + 1) / n * kUnit, operation.count);
  std::vector<const void*> in;
  std::vector<void*> out;
  in.reserve(static_cast<size_t>(n));
  out.reserve(static_cast<size_t>(n));
  exchange.meet();
  for (int m = 0; m < n; ++m) {
    in.push_back(input_of(exchange, m) + begin * item);
    out.push_back(static_cast<std::byte*>(exchange.direct_of(m).out) + begin * item);
  }
  exchange.begin_touch();
  reduce(in, out, end - begin, operation.dtype, operation.reduce_op);
  exchange.end_touch();
  exchange.sync();
}

void direct_all_gather(Exchange& exchange, const Blocks& blocks, const Buffers& buffers) {
  const int64_t whole = blocks.rows() * blocks.whole_row_bytes();
  Result result(buffers, blocks.block_bytes(exchange.member()), whole);
  exchange.meet();
  exchange.begin_touch();
  for (int m = 0; m < exchange.num_members(); ++m) {
    const auto size = static_cast<size_t>(blocks.block_bytes(m));
    blocks.put(result.data(), m, 0, {input_of(exchange, m), size});
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
  std::vector<const void*> in(static_cast<size_t>(exchange.num_members()));
  exchange.meet();
  exchange.begin_touch();
  for (int64_t row = 0; row < blocks.rows() && width > 0; ++row) {
    for (int m = 0; m < exchange.num_members(); ++m) {
      in[static_cast<size_t>(m)] = input_of(exchange, m) + row * whole + blocks.begin(self);
    }
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
    exchange.begin_touch();
    std::memcpy(data.data(), input_of(exchange, root), data.size());
    exchange.end_touch();
  }
  exchange.sync();
}

void direct_all_to_all(Exchange& exchange, const Traffic& traffic, const Buffers& buffers) {
  const auto n = static_cast<size_t>(exchange.num_members());
  const auto self = static_cast<size_t>(exchange.member());
  const auto total = [](std::span<const int64_t> sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  };
  Result result(buffers, total(traffic.send), total(traffic.recv));
  const std::vector<int64_t> sent = meet_all_to_all(exchange, traffic);
  exchange.begin_touch();
  std::byte* out = result.data();
  for (size_t m = 0; m < n; ++m) {
    const auto row = std::span(sent).subspan(m * n, n);
    const int64_t from = total(row.first(self));
    const auto size = static_cast<size_t>(row[self]);
    if (size > 0) std::memcpy(out, input_of(exchange, static_cast<int>(m)) + from, size);
    out += size;
  }
  exchange.end_touch();
  exchange.sync();
  result.finish();
}

}  // namespace cleave
