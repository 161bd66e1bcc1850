#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "cleave/layout/split.h"

namespace cleave::inline layout {

/// Same value on every rank. All ranks do the same work with it, so its gradient is the same too.
struct Replicate {};
/// Same value on every rank, used in sharded work, so each rank's gradient is a partial sum.
/// Megatron's f.
struct Fanout {};
/// Each rank has a slice of `dim` (negative counts from the end). A null split means near-equal
/// shards.
struct Shard {
  int dim = 0;
  SplitPtr split{};
};
/// Each rank has a partial sum; the gradient is the same on every rank. Partial to Replicate is
/// Megatron's g.
struct Partial {};

/// How a tensor and its gradient lie on one axis.
class Placement {
 public:
  enum class Kind : uint8_t { kReplicate, kFanout, kShard, kPartial };

  Placement() = default;
  Placement(Replicate) {}                        // NOLINT(google-explicit-constructor)
  Placement(Fanout) : kind_(Kind::kFanout) {}    // NOLINT(google-explicit-constructor)
  Placement(Partial) : kind_(Kind::kPartial) {}  // NOLINT(google-explicit-constructor)
  Placement(Shard s) : kind_(Kind::kShard), dim_(s.dim), split_(std::move(s.split)) {}  // NOLINT

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is_replicate() const { return kind_ == Kind::kReplicate; }
  [[nodiscard]] bool is_fanout() const { return kind_ == Kind::kFanout; }
  [[nodiscard]] bool is_shard() const { return kind_ == Kind::kShard; }
  /// A Shard of that dim, counted from the front.
  [[nodiscard]] bool is_shard(int64_t dim) const { return is_shard() && dim_ == dim; }
  [[nodiscard]] bool is_partial() const { return kind_ == Kind::kPartial; }
  /// The whole value is on every rank.
  [[nodiscard]] bool is_whole() const { return is_replicate() || is_fanout(); }
  [[nodiscard]] int dim() const { return dim_; }                  ///< of a Shard
  [[nodiscard]] const SplitPtr& split() const { return split_; }  ///< of a Shard; null = undecided

  /// The same with a non-negative dim, for a tensor of `num_dims` dims. Throws Error(kShape) when
  /// the dim is out of range.
  [[nodiscard]] Placement normalised(int64_t num_dims) const;

  /// Whether the two are equal; a Shard without a split matches any split of its dim.
  [[nodiscard]] bool matches(const Placement& other) const;
  /// "Replicate", "Fanout", "Shard(1)", "Partial"
  [[nodiscard]] std::string describe() const;

 private:
  Kind kind_ = Kind::kReplicate;
  int dim_ = 0;
  SplitPtr split_;
};

}  // namespace cleave::inline layout
