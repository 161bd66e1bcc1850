#include "cleave/comm/shm/collectives.h"

namespace cleave {
namespace {

// Between rank threads the second meeting of a direct collective costs as much as copying this.
constexpr int64_t kDirectBytes = 4 << 10;
// Where parts of the sum travel instead of all summands, the second meeting costs as much as this.
constexpr int64_t kPartedBytes = 16 << 10;

}  // namespace

Algorithm choose_algorithm(const CollectiveSync& exchange, Op op, int64_t bytes) {
  if (exchange.is_direct() && bytes > kDirectBytes) return Algorithm::kDirect;
  const bool is_parted = op == Op::kAllReduce && exchange.num_members() > 2 && bytes > kPartedBytes;
  return is_parted ? Algorithm::kParted : Algorithm::kStaged;
}

}  // namespace cleave
