#include "cleave/mesh/dry_axis.h"

#include <numeric>

namespace cleave {
namespace {

class DryGroup : public Group {
 public:
  DryGroup(const std::string& name, int rank, std::vector<int> ranks)
      : Group(name, rank, std::move(ranks)) {}
  void barrier(const Call& call) override { refuse(call); }
  void all_reduce(const void*, void*, int64_t, DType, ReduceOp, const Call& call) override {
    refuse(call);
  }
  void all_gather(const void*, void*, int64_t, std::span<const int64_t>, DType,
                  const Call& call) override {
    refuse(call);
  }
  void reduce_scatter(const void*, void*, int64_t, std::span<const int64_t>, DType,
                      const Call& call) override {
    refuse(call);
  }
  void broadcast(void*, int64_t, DType, int, const Call& call) override { refuse(call); }
  void all_to_all(const void*, std::span<const int64_t>, void*, std::span<const int64_t>, DType,
                  const Call& call) override {
    refuse(call);
  }
  void send(const void*, int64_t, DType, int, const Call& call) override { refuse(call); }
  void recv(void*, int64_t, DType, int, const Call& call) override { refuse(call); }

 private:
  [[noreturn]] static void refuse(const Call& call) {
    CLEAVE_BUG("a collective on a dry axis, called by ", call.site);
  }
};

}  // namespace

Axis dry_axis(const std::string& name, int rank, int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Axis(std::make_shared<DryGroup>(name, rank, std::move(ranks)));
}

}  // namespace cleave
