#pragma once
#include <map>
#include <string>
#include <tuple>

#include "cleave/layout/dtensor.h"

namespace cleave::inline pipeline {

/// Names a message between stages: an activation for a stage's forward, or a gradient for its
/// backward; with an auxiliary loss, its sums over the stages so far, or over all stages.
struct StageMessage {
  enum class Kind : uint8_t { kActivation, kGradient, kSums, kAllSums } kind = Kind::kActivation;
  int stage = 0;  ///< that receives it
  int micro_batch = 0;
  int value = 0;  ///< 0: of the layer before; others: of named values
  friend auto operator<=>(const StageMessage&, const StageMessage&) = default;
};

/// Bytes of the header of a message.
inline constexpr int64_t kMessageHeaderBytes = int64_t{18} * 8;

/// One rank's channel to the ranks of the other stages, for one run of micro-batches.
///
/// Every message starts with a header of its type, shape and layout, so micro-batches may differ in
/// shape. Under tensor parallelism each rank talks to the rank with the same index on the tp axis,
/// so only Replicate and even Shard values can be sent. Messages may arrive in any order.
class P2PChannel {
 public:
  P2PChannel(Axis pp, int num_micro_batches)
      : pp_(std::move(pp)), num_micro_batches_(num_micro_batches) {}

  /// Sends to the rank of the message's stage; returns when `value` may be changed. Throws
  /// Error(kShape) naming the maker for a Partial, a Fanout or an uneven Shard.
  void send(const StageMessage& message, const DTensor& value);

  /// Waits for the message from the rank `from`. The result is on the axis of `like`. Throws
  /// Error(kDesync) if the sender runs another number of micro-batches.
  DTensor receive(const StageMessage& message, int from, const DTensor& like);

 private:
  DTensor read(int from, const DTensor& like, StageMessage& message);

  Axis pp_;
  int num_micro_batches_;
  std::map<StageMessage, DTensor> early_;  // arrived before they were requested
};

}  // namespace cleave::inline pipeline
