#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cleave/comm/net/frame.h"
#include "cleave/comm/shm/shared_segment.h"

namespace cleave {

/// Writes what one peer tells over the network into this rank's copy of the shared segment.
///
/// Bytes go where room() says, advance() then makes sense of them. Every number in a frame is
/// checked against the segment before it is used.
class FrameDecoder {
 public:
  /// `segment` must outlive the copy; `self` and `peer` are world ranks.
  FrameDecoder(SharedSegment& segment, int self, int peer) : segment_(segment), self_(self), peer_(peer) {}

  /// Where the peer's next bytes belong; never empty.
  [[nodiscard]] std::span<std::byte> room();
  /// `count` bytes of room() are there. Throws Error(kFormat) when the peer breaks the protocol:
  /// then nothing more may be taken from it; Error(kDesync) when its groups differ from those of
  /// this rank.
  void advance(size_t count);

  /// The last question that the peer asked, and the last one that its snapshots answer; 0 is none.
  [[nodiscard]] uint32_t asked() const { return asked_; }
  [[nodiscard]] uint32_t answered() const { return answered_; }
  /// Whether the peer has said that nothing more comes.
  [[nodiscard]] bool has_ended() const { return has_ended_; }

 private:
  void begin_tail();
  void finish();
  void begin_post();
  void finish_post();
  void begin_chunk();
  void finish_chunk();
  void finish_group();
  void finish_take();
  void finish_abort();
  [[nodiscard]] MemberSlot& peer_slot(const GroupEntry& entry) const;

  SharedSegment& segment_;
  int self_, peer_;
  Frame frame_{};
  size_t filled_ = 0;                 // of the frame, then of the tail
  bool in_tail_ = false;              // the frame is whole
  std::span<std::byte> tail_;         // where the rest belongs
  std::vector<std::byte> tail_copy_;  // for what does not go straight to the segment
  uint32_t group_ = 0;                // index of a post's group
  uint32_t asked_ = 0, answered_ = 0;
  bool has_ended_ = false;
};

}  // namespace cleave
