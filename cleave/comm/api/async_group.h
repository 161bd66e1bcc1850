#pragma once
#include <functional>
#include <future>
#include <utility>

#include "cleave/comm/api/group.h"

namespace cleave {

/// A group whose collectives may also be called beside the rank's own thread, while that goes on.
///
/// All members start the same calls in the same order, counted together with those that they make
/// themselves, so a mismatch is found as ever.
class AsyncGroup : public Group {
 public:
  /// Has `call`, which makes calls of this group, made on a thread of the group's own, after all
  /// that were started before. What it throws is in the future. The memory that it uses is its own
  /// to keep alive: the starter may leave by an exception.
  virtual std::shared_future<void> start(std::function<void()> call) = 0;
  /// Returns when a started call is made, and throws what it threw. The waiting thread makes it
  /// where it has not begun.
  virtual void await(const std::shared_future<void>& done) = 0;
  /// Returns when no started call is left. To be called by the rank's own thread before it makes a
  /// call of the group itself.
  virtual void await_started() = 0;

 protected:
  using Group::Group;
};

}  // namespace cleave
