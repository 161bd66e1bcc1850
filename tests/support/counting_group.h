#pragma once
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "cleave/comm/api/group.h"

namespace cleave::test {

/// A group that forwards its collectives to another group and counts them, and the bytes that this
/// rank sends to others by bandwidth-optimal algorithms, by name.
class CountingGroup : public Group {
 public:
  explicit CountingGroup(std::shared_ptr<Group> inner)
      : Group(inner->name(), inner->rank(), inner->ranks()), inner_(std::move(inner)) {}

  /// Calls since the last call of taken(): {{"all_reduce", 2}}.
  std::map<std::string, int> taken() { return std::exchange(counts_, {}); }
  /// The bytes since the last call of taken_bytes().
  std::map<std::string, int64_t> taken_bytes() { return std::exchange(bytes_, {}); }

  void barrier(const Call& call) override {
    ++counts_["barrier"];
    inner_->barrier(call);
  }
  void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                  const Call& call) override {
    note("all_reduce", 2 * (count * (size() - 1) / size()), dtype);
    inner_->all_reduce(in, out, count, dtype, op, call);
  }
  void all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                  DType dtype, const Call& call) override {
    note("all_gather", rows * widths[static_cast<size_t>(rank())] * (size() - 1), dtype);
    inner_->all_gather(in, out, rows, widths, dtype, call);
  }
  void reduce_scatter(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                      DType dtype, const Call& call) override {
    note("reduce_scatter", rows * (sum(widths) - widths[static_cast<size_t>(rank())]), dtype);
    inner_->reduce_scatter(in, out, rows, widths, dtype, call);
  }
  void broadcast(void* data, int64_t count, DType dtype, int root, const Call& call) override {
    note("broadcast", rank() == root ? count * (size() - 1) : 0, dtype);
    inner_->broadcast(data, count, dtype, root, call);
  }
  void all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                  std::span<const int64_t> recv_counts, DType dtype, const Call& call) override {
    note("all_to_all", sum(send_counts) - send_counts[static_cast<size_t>(rank())], dtype);
    inner_->all_to_all(in, send_counts, out, recv_counts, dtype, call);
  }
  void send(const void* data, int64_t count, DType dtype, int to, const Call& call) override {
    note("send", count, dtype);
    inner_->send(data, count, dtype, to, call);
  }
  void recv(void* data, int64_t count, DType dtype, int from, const Call& call) override {
    ++counts_["recv"];
    inner_->recv(data, count, dtype, from, call);
  }

 private:
  static int64_t sum(std::span<const int64_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
  void note(const char* name, int64_t sent, DType dtype) {
    ++counts_[name];
    bytes_[name] += sent * item_bytes(dtype);
  }
  std::shared_ptr<Group> inner_;
  std::map<std::string, int> counts_;
  std::map<std::string, int64_t> bytes_;
};

}  // namespace cleave::test
