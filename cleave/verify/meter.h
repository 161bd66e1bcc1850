#pragma once
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "cleave/comm/api/group.h"

namespace cleave::verifying {

/// Bytes that collectives of a group moved: the sizes of whole tensors, not of the shards of a
/// rank.
struct Moved {
  int64_t bytes = 0;
  int64_t gathered = 0;  ///< of these, in all-gathers

  Moved operator-(const Moved& before) const {
    return {.bytes = bytes - before.bytes, .gathered = gathered - before.gathered};
  }
};

/// A group that counts the bytes of its collectives.
class Meter : public Group {
 public:
  explicit Meter(std::shared_ptr<Group> inner)
      : Group(inner->name(), inner->rank(), inner->ranks()), inner_(std::move(inner)) {}

  [[nodiscard]] const Moved& moved() const { return moved_; }

  void barrier(const Call& call) override { inner_->barrier(call); }
  void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                  const Call& call) override {
    moved_.bytes += count * item_bytes(dtype);
    inner_->all_reduce(in, out, count, dtype, op, call);
  }
  void all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                  DType dtype, const Call& call) override {
    const int64_t bytes = rows * sum(widths) * item_bytes(dtype);
    moved_.bytes += bytes;
    moved_.gathered += bytes;
    inner_->all_gather(in, out, rows, widths, dtype, call);
  }
  void reduce_scatter(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                      DType dtype, const Call& call) override {
    moved_.bytes += rows * sum(widths) * item_bytes(dtype);
    inner_->reduce_scatter(in, out, rows, widths, dtype, call);
  }
  void broadcast(void* data, int64_t count, DType dtype, int root, const Call& call) override {
    moved_.bytes += count * item_bytes(dtype);
    inner_->broadcast(data, count, dtype, root, call);
  }
  void all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                  std::span<const int64_t> recv_counts, DType dtype, const Call& call) override {
    moved_.bytes += sum(send_counts) * item_bytes(dtype);
    inner_->all_to_all(in, send_counts, out, recv_counts, dtype, call);
  }
  void send(const void* data, int64_t count, DType dtype, int to, const Call& call) override {
    moved_.bytes += count * item_bytes(dtype);
    inner_->send(data, count, dtype, to, call);
  }
  void recv(void* data, int64_t count, DType dtype, int from, const Call& call) override {
    inner_->recv(data, count, dtype, from, call);
  }

 private:
  static int64_t sum(std::span<const int64_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
  std::shared_ptr<Group> inner_;
  Moved moved_;
};

}  // namespace cleave::verifying
