#include "cleave/comm/shm/collectives.h"

namespace cleave {
namespace {

// Up to this size a copy costs less than the second synchronization of a direct collective.
constexpr int64_t kDirectBytes = 4 << 10;
// Up to this size reading all summands costs less than the second synchronization of kTwoShot.
constexpr int64_t kTwoShotBytes = 16 << 10;

}  // namespace

Algorithm choose_algorithm(const CollectiveSync& sync, Op op, int64_t bytes) {
  if (sync.is_direct() && bytes > kDirectBytes) return Algorithm::kDirect;
  const bool is_two_shot = op == Op::kAllReduce && sync.num_members() > 2 && bytes > kTwoShotBytes;
  return is_two_shot ? Algorithm::kTwoShot : Algorithm::kStaged;
}

}  // namespace cleave
