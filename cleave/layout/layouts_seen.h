#pragma once
#include <optional>
#include <string>

#include "cleave/layout/dtensor.h"

namespace cleave {

/// The layouts of the floating-point values that a piece of work has had at hand on this thread,
/// from its making to its end: those that were made meanwhile, and those added. Work inside it has
/// a record of its own.
class LayoutsSeen {
 public:
  LayoutsSeen();
  ~LayoutsSeen();
  LayoutsSeen(const LayoutsSeen&) = delete;
  LayoutsSeen& operator=(const LayoutsSeen&) = delete;

  /// Of the innermost work of this thread; null outside all.
  [[nodiscard]] static LayoutsSeen* current();

  /// Adds the layout of a split value to the record of this thread's work. Values of other types
  /// than floating point have no gradient and do not count.
  static void add(const DTensor& value);

  /// A layout and who made the value.
  struct Seen {
    Placement placement;
    std::string maker;
    /// "a Shard(1) made by block.mlp"
    [[nodiscard]] std::string describe() const;
  };
  /// The first on which each rank does other work (Shard, Fanout).
  [[nodiscard]] const std::optional<Seen>& split_work() const { return split_work_; }
  /// The first on which all ranks do the same (Replicate, Partial).
  [[nodiscard]] const std::optional<Seen>& same_work() const { return same_work_; }

 private:
  LayoutsSeen* outer_;
  std::optional<Seen> split_work_, same_work_;
};

}  // namespace cleave
