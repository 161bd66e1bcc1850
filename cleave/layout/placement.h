#pragma once
#include <cstdint>
#include <string>

#include "cleave/layout/split.h"

namespace cleave {

/// Same value on every rank; every rank does the same work with it, so its gradient is the same
/// too.
struct Replicate {};
/// Same value on every rank, entering split work: each rank's gradient is a partial sum. Megatron's
/// f, "Duplication".
struct Fanout {};
/// Each rank has a slice of `dim` (negative counts from the end); without a split, near-equal cuts.
struct Shard {
  int dim = 0;
  const Split* split = nullptr;
};
/// Each rank has a partial sum, its gradient is the same everywhere. To Replicate is Megatron's g.
struct Partial {};

/// Where the elements of a tensor are on one axis, and with it where those of its gradient are.
class Placement {
 public:
  enum class Kind : uint8_t { kReplicate, kFanout, kShard, kPartial };

  Placement() = default;
  Placement(Replicate) {}                        // NOLINT(google-explicit-constructor)
  Placement(Fanout) : kind_(Kind::kFanout) {}    // NOLINT(google-explicit-constructor)
  Placement(Partial) : kind_(Kind::kPartial) {}  // NOLINT(google-explicit-constructor)
  Placement(Shard s) : kind_(Kind::kShard), dim_(s.dim), split_(s.split) {}  // NOLINT

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is_replicate() const { return kind_ == Kind::kReplicate; }
  [[nodiscard]] bool is_fanout() const { return kind_ == Kind::kFanout; }
  [[nodiscard]] bool is_shard() const { return kind_ == Kind::kShard; }
  /// A Shard of that dim, counted from the front.
  [[nodiscard]] bool is_shard(int64_t dim) const { return is_shard() && dim_ == dim; }
  [[nodiscard]] bool is_partial() const { return kind_ == Kind::kPartial; }
  /// The whole value is on every rank.
  [[nodiscard]] bool is_whole() const { return is_replicate() || is_fanout(); }
  [[nodiscard]] int dim() const { return dim_; }               ///< of a Shard
  [[nodiscard]] const Split* split() const { return split_; }  ///< of a Shard; null = not yet cut

  /// For a tensor of `num_dims`: a negative dim counted from the front. Throws Error(kShape).
  [[nodiscard]] Placement normalised(int64_t num_dims) const;

  /// Equal; a Shard without a split equals any split of its dim.
  [[nodiscard]] bool matches(const Placement& other) const;
  /// "Replicate", "Fanout", "Shard(1)", "Partial"
  [[nodiscard]] std::string describe() const;

 private:
  Kind kind_ = Kind::kReplicate;
  int dim_ = 0;
  const Split* split_ = nullptr;
};

}  // namespace cleave
