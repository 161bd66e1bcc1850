#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "cleave/comm/api/group.h"

namespace cleave::test {

/// A group that forwards its collectives to another group and counts them by name.
class CountingGroup : public Group {
 public:
  explicit CountingGroup(std::shared_ptr<Group> inner)
      : Group(inner->name(), inner->rank(), inner->ranks()), inner_(std::move(inner)) {}

  /// Calls since the last call of taken(): {{"all_reduce", 2}}.
  std::map<std::string, int> taken() { return std::exchange(counts_, {}); }

  void barrier(const Call& call) override {
    ++counts_["barrier"];
    inner_->barrier(call);
  }
  void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                  const Call& call) override {
    ++counts_["all_reduce"];
    inner_->all_reduce(in, out, count, dtype, op, call);
  }
  void all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                  DType dtype, const Call& call) override {
    ++counts_["all_gather"];
    inner_->all_gather(in, out, rows, widths, dtype, call);
  }
  void reduce_scatter(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                      DType dtype, const Call& call) override {
    ++counts_["reduce_scatter"];
    inner_->reduce_scatter(in, out, rows, widths, dtype, call);
  }
  void broadcast(void* data, int64_t count, DType dtype, int root, const Call& call) override {
    ++counts_["broadcast"];
    inner_->broadcast(data, count, dtype, root, call);
  }
  void all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                  std::span<const int64_t> recv_counts, DType dtype, const Call& call) override {
    ++counts_["all_to_all"];
    inner_->all_to_all(in, send_counts, out, recv_counts, dtype, call);
  }
  void send(const void* data, int64_t count, DType dtype, int to, const Call& call) override {
    ++counts_["send"];
    inner_->send(data, count, dtype, to, call);
  }
  void recv(void* data, int64_t count, DType dtype, int from, const Call& call) override {
    ++counts_["recv"];
    inner_->recv(data, count, dtype, from, call);
  }

 private:
  std::shared_ptr<Group> inner_;
  std::map<std::string, int> counts_;
};

}  // namespace cleave::test
