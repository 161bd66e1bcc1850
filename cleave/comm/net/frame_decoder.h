#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cleave/comm/net/frame.h"
#include "cleave/comm/shm/shared_segment.h"

namespace cleave::inline comm {

/// Decodes the frames of one peer and writes their contents to this rank's replica of the shared
/// segment.
///
/// The caller writes received bytes to receive_buffer() and then calls advance(). Every number in a
/// frame is checked against the segment before it is used.
class FrameDecoder {
 public:
  /// `segment` must outlive the decoder; `self` and `peer` are world ranks.
  FrameDecoder(SharedSegment& segment, int self, int peer)
      : segment_(segment), self_(self), peer_(peer) {}

  /// Where the peer's next bytes must be written; never empty.
  [[nodiscard]] std::span<std::byte> receive_buffer();
  /// Consumes `count` bytes that were written to receive_buffer(). Throws Error(kFormat) if the
  /// peer violates the protocol, after which nothing more may be read from it; Error(kDesync) if
  /// its groups differ from those of this rank.
  void advance(size_t count);

  /// The peer's last snapshot request, and the last request that its snapshots answer; 0 if none.
  [[nodiscard]] uint32_t last_request() const { return last_request_; }
  [[nodiscard]] uint32_t last_answer() const { return last_answer_; }
  /// Whether the peer has sent its last frame.
  [[nodiscard]] bool has_ended() const { return has_ended_; }

 private:
  void begin_body();
  void finish();
  void begin_post();
  void finish_post();
  void begin_chunk();
  void finish_chunk();
  void finish_group();
  void finish_ack();
  void finish_abort();
  [[nodiscard]] MemberSlot& peer_slot(const GroupEntry& entry) const;

  SharedSegment& segment_;
  int self_, peer_;
  Frame frame_{};
  size_t filled_ = 0;                 // bytes of the frame header, then of the body
  bool in_body_ = false;              // the frame header is complete
  std::span<std::byte> body_;         // where the body is written
  std::vector<std::byte> body_copy_;  // for bodies that are not written to the segment directly
  uint32_t group_ = 0;                // index of a post's group
  uint32_t last_request_ = 0, last_answer_ = 0;
  bool has_ended_ = false;
};

}  // namespace cleave::inline comm
