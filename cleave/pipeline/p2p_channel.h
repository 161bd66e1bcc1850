#pragma once
#include <map>
#include <string>
#include <tuple>

#include "cleave/layout/dtensor.h"

namespace cleave {

/// What travels between stages: to a stage's forward, or to its backward.
struct StageMessage {
  enum class Kind : uint8_t { kActivation, kGradient } kind = Kind::kActivation;
  int stage = 0;  ///< that it is for
  int micro_batch = 0;
  friend auto operator<=>(const StageMessage&, const StageMessage&) = default;
};

/// One rank's way to the ranks of the other stages, for one run of micro-batches.
///
/// Every message begins with a header of its type, shape and layout, so micro-batches may differ in
/// shape. Under tensor parallelism each rank talks to its counterpart at the same place of the tp
/// axis: Replicate and evenly cut Shard cross. Messages are taken in whatever order they come.
class P2PChannel {
 public:
  P2PChannel(Axis pp, int num_micro_batches)
      : pp_(std::move(pp)), num_micro_batches_(num_micro_batches) {}

  /// Sends to the rank of the message's stage; returns when `value` may be changed. Throws
  /// Error(kShape) naming the maker for a Partial, a Fanout, or a Shard whose cut is not even.
  void send(const StageMessage& message, const DTensor& value);

  /// Waits for the message from the rank `from`. The tensor is on the axis, and under the maker's
  /// name, of `like`. Throws Error(kDesync) when the sender runs another number of micro-batches.
  DTensor receive(const StageMessage& message, int from, const DTensor& like);

 private:
  DTensor read(int from, const DTensor& like, StageMessage& message);

  Axis pp_;
  int num_micro_batches_;
  std::map<StageMessage, DTensor> early_;  // came before they were asked for
};

}  // namespace cleave
