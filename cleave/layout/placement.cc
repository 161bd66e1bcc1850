#include "cleave/layout/placement.h"

#include "cleave/base/error.h"

namespace cleave::inline layout {

Placement Placement::normalised(int64_t num_dims) const {
  if (!is_shard()) return *this;
  Placement p = *this;
  if (p.dim_ < 0) p.dim_ += static_cast<int>(num_dims);
  CLEAVE_CHECK(0 <= p.dim_ && p.dim_ < num_dims, Code::kShape, describe(), " of a tensor with ",
               num_dims, " dims; dim may be ", -num_dims, " to ", num_dims - 1);
  return p;
}

bool Placement::matches(const Placement& other) const {
  if (kind_ != other.kind_) return false;
  if (!is_shard()) return true;
  const bool same_split = split_ == nullptr || other.split_ == nullptr || split_ == other.split_;
  return dim_ == other.dim_ && same_split;
}

std::string Placement::describe() const {
  switch (kind_) {
    case Kind::kReplicate:
      return "Replicate";
    case Kind::kFanout:
      return "Fanout";
    case Kind::kShard:
      return str("Shard(", dim_, ")");
    case Kind::kPartial:
      return "Partial";
  }
  CLEAVE_BUG("unknown placement kind ", static_cast<int>(kind_));
}

}  // namespace cleave::inline layout
