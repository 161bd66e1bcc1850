#pragma once
#include <optional>
#include <string>

#include "cleave/layout/dtensor.h"

namespace cleave::inline layout {

/// Scope that records the placements of all floating-point DTensors that this thread makes or adds
/// while the scope is alive. A nested scope has its own record.
class PlacementsSeen {
 public:
  PlacementsSeen();
  ~PlacementsSeen();
  PlacementsSeen(const PlacementsSeen&) = delete;
  PlacementsSeen& operator=(const PlacementsSeen&) = delete;

  /// Innermost scope of this thread; null outside any.
  [[nodiscard]] static PlacementsSeen* current();

  /// Records the placement of a value on more than one rank in the innermost scope. Integer values
  /// are ignored, since they have no gradient.
  static void add(const DTensor& value);

  /// A placement, and the layer that made the value.
  struct Seen {
    Placement placement;
    std::string maker;
    /// "a Shard(1) made by block.mlp"
    [[nodiscard]] std::string describe() const;
  };
  /// First placement with which ranks do different work (Shard, Fanout).
  [[nodiscard]] const std::optional<Seen>& sharded_work() const { return sharded_work_; }
  /// First placement with which all ranks do the same work (Replicate, Partial).
  [[nodiscard]] const std::optional<Seen>& same_work() const { return same_work_; }

 private:
  PlacementsSeen* outer_;
  std::optional<Seen> sharded_work_, same_work_;
};

}  // namespace cleave::inline layout
