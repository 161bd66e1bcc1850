#include "cleave/mesh/dry_axis.h"

#include <numeric>

namespace cleave::inline mesh {
namespace {

int64_t sum(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

class DryGroup : public Group {
 public:
  DryGroup(const std::string& name, int rank, std::vector<int> ranks)
      : Group(name, rank, std::move(ranks)) {}
  void barrier(const Call& /*call*/) override { ++calls_["barrier"].num_calls; }
  void all_reduce(const void* in, void*, int64_t count, DType dtype, ReduceOp,
                  const Call& call) override {
    note("all-reduce", in, 2 * share(count), dtype, call);
  }
  void all_gather(const void* in, void*, int64_t rows, std::span<const int64_t> widths, DType dtype,
                  const Call& call) override {
    note("all-gather", in, rows * widths[static_cast<size_t>(rank())] * (size() - 1), dtype, call);
  }
  void reduce_scatter(const void* in, void*, int64_t rows, std::span<const int64_t> widths,
                      DType dtype, const Call& call) override {
    note("reduce-scatter", in, rows * (sum(widths) - widths[static_cast<size_t>(rank())]), dtype,
         call);
  }
  void broadcast(void* data, int64_t count, DType dtype, int root, const Call& call) override {
    note("broadcast", data, rank() == root ? count * (size() - 1) : 0, dtype, call);
  }
  void all_to_all(const void* in, std::span<const int64_t> send, void*, std::span<const int64_t>,
                  DType dtype, const Call& call) override {
    note("all-to-all", in, sum(send) - send[static_cast<size_t>(rank())], dtype, call);
  }
  void send(const void* data, int64_t count, DType dtype, int, const Call& call) override {
    note("send", data, count, dtype, call);
  }
  void recv(void* data, int64_t, DType dtype, int, const Call& call) override {
    note("recv", data, 0, dtype, call);
  }
  [[nodiscard]] const DryCalls& calls() const { return calls_; }

 private:
  [[nodiscard]] int64_t share(int64_t count) const { return count * (size() - 1) / size(); }
  void note(const char* kind, const void* data, int64_t count, DType dtype, const Call& call) {
    CLEAVE_CHECK(data == nullptr, Code::kBug, "a dry axis moves no data, but ", call.site,
                 " passes some");
    DryTraffic& traffic = calls_[kind];
    ++traffic.num_calls;
    traffic.bytes += count * item_bytes(dtype);
  }
  DryCalls calls_;
};

}  // namespace

Axis dry_axis(const std::string& name, int rank, int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Axis(std::make_shared<DryGroup>(name, rank, std::move(ranks)));
}

DryTraffic sum_of(const DryCalls& calls) {
  DryTraffic all;
  for (const auto& [kind, traffic] : calls) {
    all.num_calls += traffic.num_calls;
    all.bytes += traffic.bytes;
  }
  return all;
}

DryCalls dry_calls(const Axis& axis) {
  const auto* group = dynamic_cast<const DryGroup*>(axis.group().get());
  return group == nullptr ? DryCalls{} : group->calls();
}

}  // namespace cleave::inline mesh
