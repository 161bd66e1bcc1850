#include "cleave/mesh/staged_group.h"

#include <numeric>

namespace cleave::inline mesh {
namespace {

// The members have agreed on the operation, which names the caller, already.
constexpr Call kStagedCall{.site = "host memory of the device", .shape = {}};

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

class StagedGroup : public DeviceGroup {
 public:
  StagedGroup(Device& device, Group& group) : device_(device), group_(group) {}

  DeviceWorkPtr all_reduce(const void* in, void* out, int64_t count, DType dtype,
                           ReduceOp op) override {
    const int64_t bytes = count * item_bytes(dtype);
    return staged(in, bytes, out, bytes, [&](const void* from, void* to) {
      group_.all_reduce(from, to, count, dtype, op, kStagedCall);
    });
  }
  DeviceWorkPtr all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                           DType dtype) override {
    const int64_t item = rows * item_bytes(dtype);
    return staged(in, item * own(widths), out, item * sum_of(widths),
                  [&](const void* from, void* to) {
                    group_.all_gather(from, to, rows, widths, dtype, kStagedCall);
                  });
  }
  DeviceWorkPtr reduce_scatter(const void* in, void* out, int64_t rows,
                               std::span<const int64_t> widths, DType dtype) override {
    const int64_t item = rows * item_bytes(dtype);
    return staged(in, item * sum_of(widths), out, item * own(widths),
                  [&](const void* from, void* to) {
                    group_.reduce_scatter(from, to, rows, widths, dtype, kStagedCall);
                  });
  }
  DeviceWorkPtr broadcast(void* data, int64_t count, DType dtype, int root) override {
    const int64_t bytes = count * item_bytes(dtype);
    std::byte* const host = in_.get(device_, static_cast<size_t>(bytes));
    if (group_.rank() == root) copy(host, data, bytes);
    group_.broadcast(host, count, dtype, root, kStagedCall);
    if (group_.rank() != root) copy(data, host, bytes);
    return nullptr;
  }
  DeviceWorkPtr all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                           std::span<const int64_t> recv_counts, DType dtype) override {
    const int64_t item = item_bytes(dtype);
    return staged(in, item * sum_of(send_counts), out, item * sum_of(recv_counts),
                  [&](const void* from, void* to) {
                    group_.all_to_all(from, send_counts, to, recv_counts, dtype, kStagedCall);
                  });
  }

 private:
  /// Calls run(from, to) with host memory: a copy of `in`, and what becomes `out`.
  template <class Run>
  DeviceWorkPtr staged(const void* in, int64_t in_bytes, void* out, int64_t out_bytes,
                       const Run& run) {
    std::byte* const from = in_.get(device_, static_cast<size_t>(in_bytes));
    copy(from, in, in_bytes);
    std::byte* const to = out_.get(device_, static_cast<size_t>(out_bytes));
    run(from, to);
    copy(out, to, out_bytes);
    return nullptr;
  }
  void copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) device_.copy(to, from, static_cast<size_t>(bytes));
  }
  [[nodiscard]] int64_t own(std::span<const int64_t> widths) const {
    return widths[static_cast<size_t>(group_.rank())];
  }

  Device& device_;
  Group& group_;
  DeviceCopyBuffer in_, out_;
};

}  // namespace

std::unique_ptr<DeviceGroup> staged_group(Device& device, Group& group) {
  return std::make_unique<StagedGroup>(device, group);
}

}  // namespace cleave::inline mesh
