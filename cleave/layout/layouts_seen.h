#pragma once
#include <optional>
#include <string>

#include "cleave/layout/dtensor.h"

namespace cleave::inline layout {

/// Scope that records the layouts of all floating-point DTensors that this thread makes or adds
/// while the scope is alive. A nested scope has its own record.
class LayoutsSeen {
 public:
  LayoutsSeen();
  ~LayoutsSeen();
  LayoutsSeen(const LayoutsSeen&) = delete;
  LayoutsSeen& operator=(const LayoutsSeen&) = delete;

  /// Innermost scope of this thread; null outside any.
  [[nodiscard]] static LayoutsSeen* current();

  /// Records the layout of a value on more than one rank in the innermost scope. Integer values are
  /// ignored, since they have no gradient.
  static void add(const DTensor& value);

  /// A layout, and the layer that made the value.
  struct Seen {
    Placement placement;
    std::string maker;
    /// "a Shard(1) made by block.mlp"
    [[nodiscard]] std::string describe() const;
  };
  /// First layout on which ranks do different work (Shard, Fanout).
  [[nodiscard]] const std::optional<Seen>& split_work() const { return split_work_; }
  /// First layout on which all ranks do the same work (Replicate, Partial).
  [[nodiscard]] const std::optional<Seen>& same_work() const { return same_work_; }

 private:
  LayoutsSeen* outer_;
  std::optional<Seen> split_work_, same_work_;
};

}  // namespace cleave::inline layout
