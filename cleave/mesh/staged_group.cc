#include "cleave/mesh/staged_group.h"

#include <numeric>

namespace cleave::inline mesh {
namespace {

// The members have agreed on the operation, which names the caller, already.
constexpr Call kStagedCall{.site = "host memory of the device", .shape = {}};

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

const std::byte* StagedGroup::copied(const void* in, int64_t bytes) {
  std::byte* const host = in_.get(device_, static_cast<size_t>(bytes));
  if (bytes > 0) device_.copy(host, in, static_cast<size_t>(bytes));
  return host;
}

void StagedGroup::copy_back(void* out, const std::byte* from, int64_t bytes) {
  if (bytes > 0) device_.copy(out, from, static_cast<size_t>(bytes));
}

DeviceWorkPtr StagedGroup::all_reduce(const void* in, void* out, int64_t count, DType dtype,
                                      ReduceOp op) {
  const int64_t bytes = count * item_bytes(dtype);
  const std::byte* const from = copied(in, bytes);
  std::byte* const to = out_.get(device_, static_cast<size_t>(bytes));
  group_.all_reduce(from, to, count, dtype, op, kStagedCall);
  copy_back(out, to, bytes);
  return nullptr;
}

DeviceWorkPtr StagedGroup::all_gather(const void* in, void* out, int64_t rows,
                                      std::span<const int64_t> widths, DType dtype) {
  const int64_t item = rows * item_bytes(dtype);
  const std::byte* const from = copied(in, item * widths[static_cast<size_t>(group_.rank())]);
  const int64_t bytes = item * sum_of(widths);
  std::byte* const to = out_.get(device_, static_cast<size_t>(bytes));
  group_.all_gather(from, to, rows, widths, dtype, kStagedCall);
  copy_back(out, to, bytes);
  return nullptr;
}

DeviceWorkPtr StagedGroup::reduce_scatter(const void* in, void* out, int64_t rows,
                                          std::span<const int64_t> widths, DType dtype) {
  const int64_t item = rows * item_bytes(dtype);
  const std::byte* const from = copied(in, item * sum_of(widths));
  const int64_t bytes = item * widths[static_cast<size_t>(group_.rank())];
  std::byte* const to = out_.get(device_, static_cast<size_t>(bytes));
  group_.reduce_scatter(from, to, rows, widths, dtype, kStagedCall);
  copy_back(out, to, bytes);
  return nullptr;
}

DeviceWorkPtr StagedGroup::broadcast(void* data, int64_t count, DType dtype, int root) {
  const int64_t bytes = count * item_bytes(dtype);
  std::byte* const host = in_.get(device_, static_cast<size_t>(bytes));
  if (group_.rank() == root && bytes > 0) device_.copy(host, data, static_cast<size_t>(bytes));
  group_.broadcast(host, count, dtype, root, kStagedCall);
  if (group_.rank() != root) copy_back(data, host, bytes);
  return nullptr;
}

DeviceWorkPtr StagedGroup::all_to_all(const void* in, std::span<const int64_t> send_counts,
                                      void* out, std::span<const int64_t> recv_counts,
                                      DType dtype) {
  const int64_t item = item_bytes(dtype);
  const std::byte* const from = copied(in, item * sum_of(send_counts));
  const int64_t bytes = item * sum_of(recv_counts);
  std::byte* const to = out_.get(device_, static_cast<size_t>(bytes));
  group_.all_to_all(from, send_counts, to, recv_counts, dtype, kStagedCall);
  copy_back(out, to, bytes);
  return nullptr;
}

}  // namespace cleave::inline mesh
