#include "cleave/comm/net/frame_decoder.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/dtype.h"
#include "cleave/comm/diagnostics/flight_log.h"
#include "cleave/comm/net/frame.h"
#include "tests/support/thrown.h"

namespace cleave::frame_decoder_test {
namespace {

using testing::HasSubstr;
using Bytes = std::string;

constexpr uint64_t kKey = 77;

/// Rank 0's replica of a segment of three ranks, and its decoder for the frames of rank 1.
class Receiver {
 public:
  Receiver() { group = segment->join_group(kKey, std::vector{0, 1}, "tp"); }

  void receive(const Frame& frame, const Bytes& body = {}, size_t piece = 7) {
    feed(std::as_bytes(std::span(&frame, 1)), piece);
    feed(std::as_bytes(std::span(body)), piece);
  }

  std::shared_ptr<SharedSegment> segment = SharedSegment::create_replica(3, 0);
  uint32_t group = 0;
  FrameDecoder decoder{*segment, 0, 1};

 private:
  /// Passes the bytes in pieces that end anywhere.
  void feed(std::span<const std::byte> bytes, size_t piece) {
    while (!bytes.empty()) {
      const auto buffer = decoder.receive_buffer();
      ASSERT_FALSE(buffer.empty());
      const size_t size = std::min({buffer.size(), piece, bytes.size()});
      std::memcpy(buffer.data(), bytes.data(), size);
      decoder.advance(size);
      bytes = bytes.subspan(size);
    }
  }
};

Frame post(uint32_t number, uint64_t offset, size_t bytes) {
  Frame frame{};
  frame.kind = FrameKind::kPost;
  frame.key = kKey;
  frame.number = number;
  frame.offset = offset;
  frame.bytes = static_cast<uint32_t>(bytes);
  frame.header.op = Op::kAllReduce;
  frame.header.dtype = static_cast<uint8_t>(DType::kF32);
  frame.header.group = 1234;  // the group's index in rank 1's replica
  return frame;
}

Frame chunk(uint32_t number, uint64_t count, size_t bytes) {
  Frame frame = post(number, count * 4, bytes);
  frame.kind = FrameKind::kChunk;
  frame.header.op = Op::kSend;
  frame.header.count = count;
  return frame;
}

Frame plain(FrameKind kind, uint32_t number, size_t bytes = 0) {
  Frame frame{};
  frame.kind = kind;
  frame.number = number;
  frame.bytes = static_cast<uint32_t>(bytes);
  return frame;
}

Bytes group_body(int32_t num_ranks, const std::vector<int32_t>& ranks, std::string_view name) {
  GroupBody head{};
  name.copy(head.name, sizeof(head.name));
  head.num_ranks = num_ranks;
  Bytes bytes(sizeof(head) + ranks.size() * sizeof(int32_t), '\0');
  std::memcpy(bytes.data(), &head, sizeof(head));
  if (!ranks.empty()) std::memcpy(bytes.data() + sizeof(head), ranks.data(), ranks.size() * 4);
  return bytes;
}

TEST(FrameDecoder, Post_ArrivesInThePeersSlot) {
  Receiver receiver;
  receiver.receive(post(1, 64, 5), "hello");
  const GroupEntry& entry = receiver.segment->group(receiver.group);
  EXPECT_EQ(receiver.segment->member(entry, 1).stamp.load(), 1U);
  EXPECT_EQ(receiver.segment->member(entry, 1).header[1].group, receiver.group);
  EXPECT_EQ(std::memcmp(receiver.segment->payload(entry, 1, 1) + 64, "hello", 5), 0);
}

TEST(FrameDecoder, SiteWithoutAnEnd_IsCut) {
  Receiver receiver;
  Frame frame = post(1, 64, 5);
  std::memset(frame.note.site, 'x', sizeof(frame.note.site));
  receiver.receive(frame, "hello");
  const CallNote& note =
      receiver.segment->member(receiver.segment->group(receiver.group), 1).note[1];
  EXPECT_EQ(Bytes(note.site, sizeof(note.site)), Bytes(sizeof(note.site) - 1, 'x') + '\0');
}

TEST(FrameDecoder, Message_ArrivesInTheRing) {
  Receiver receiver;
  receiver.receive(chunk(0, 2, 8), "8 bytes!");
  const MessageRing& ring = receiver.segment->ring(1, 0);
  EXPECT_EQ(ring.head.load(), 1U);
  EXPECT_EQ(ring.chunks[0].message_bytes, 8U);
  EXPECT_EQ(std::memcmp(ring.chunks[0].data, "8 bytes!", 8), 0);
}

TEST(FrameDecoder, Failure_IsRecordedWithItsText) {
  Receiver receiver;
  AbortBody failure{};
  failure.rank = 2;
  failure.code = static_cast<int32_t>(Code::kNumerics);
  std::memset(failure.text, 'x', sizeof(failure.text));  // no terminating null
  Bytes body(sizeof(failure), '\0');
  std::memcpy(body.data(), &failure, sizeof(failure));
  receiver.receive(plain(FrameKind::kAbort, 0, body.size()), body, 100);
  const auto cause = receiver.segment->aborted();
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->rank, 2);
  EXPECT_EQ(cause->code, Code::kNumerics);
  EXPECT_EQ(cause->text, std::string(sizeof(failure.text) - 1, 'x'));
}

struct BadFrame {
  std::string what;
  std::function<void(Receiver&)> send;
};

std::function<void(Receiver&)> frame(const Frame& f, const Bytes& body = {}) {
  return [=](Receiver& receiver) { receiver.receive(f, body, 4096); };
}

Frame changed(Frame f, const std::function<void(Frame&)>& change) {
  change(f);
  return f;
}

std::vector<BadFrame> bad_posts() {
  const uint64_t payload_bytes = 1 << 20;
  return {{"kind", frame(plain(static_cast<FrameKind>(99), 0))},
          {"body too long", frame(plain(FrameKind::kGroup, 0, kMaxBodyBytes + 1))},
          {"post to an unknown group", frame(changed(post(1, 0, 0), [](Frame& f) { f.key = 5; }))},
          {"post out of turn", frame(post(2, 0, 0))},
          {"post beyond the payload", frame(post(1, payload_bytes - 4, 5))},
          {"post at an offset that wraps", frame(post(1, ~uint64_t{0}, 5))},
          {"post of no dtype", frame(changed(post(1, 0, 0), [](Frame& f) { f.header.dtype = 0; }))},
          {"two posts ahead", [](Receiver& receiver) {
             receiver.receive(post(1, 0, 0));
             receiver.receive(post(2, 0, 0));
           }}};
}

std::vector<BadFrame> bad_messages() {
  return {
      {"chunk out of turn", frame(chunk(1, 1, 4))},
      {"chunk too long", frame(chunk(0, 1 << 20, kChunkBytes + 1))},
      {"chunk longer than its message", frame(chunk(0, 1, 8))},
      {"message of another length", frame(changed(chunk(0, 2, 4), [](Frame& f) { f.offset = 9; }))},
      {"message that wraps", frame(changed(chunk(0, 2, 4),
                                           [](Frame& f) {
                                             f.header.count = uint64_t{1} << 63;
                                             f.offset = 0;
                                           }))},
      {"message of no dtype",
       frame(changed(chunk(0, 2, 4), [](Frame& f) { f.header.dtype = 99; }))},
      {"message of no group", frame(changed(chunk(0, 1, 4), [](Frame& f) { f.key = 5; }))},
      {"five chunks unread", [](Receiver& receiver) {
         for (uint32_t i = 0; i < 5; ++i) receiver.receive(chunk(i, 1, 4), "1234", 999);
       }}};
}

std::vector<BadFrame> bad_control_frames() {
  const auto ack = [](uint32_t number) {
    return [number](Receiver& receiver) {
      MessageRing& ring = receiver.segment->ring(0, 1);
      ring.head.store(5);
      ring.tail.store(4);
      receiver.receive(plain(FrameKind::kAck, number));
    };
  };
  return {{"ack of a chunk that was not sent", ack(6)},
          {"ack that goes back", ack(3)},
          {"group cut short", frame(plain(FrameKind::kGroup, 0, 3), "abc")},
          {"group of too many", frame(plain(FrameKind::kGroup, 0, 44), group_body(4, {}, "x"))},
          {"group of other bytes", frame(plain(FrameKind::kGroup, 0, 48), group_body(2, {1}, "x"))},
          {"group without its sender",
           frame(changed(plain(FrameKind::kGroup, 0, 52), [](Frame& f) { f.key = 9; }),
                 group_body(2, {0, 2}, "x"))},
          {"group that descends",
           frame(changed(plain(FrameKind::kGroup, 0, 52), [](Frame& f) { f.key = 9; }),
                 group_body(2, {1, 0}, "x"))},
          {"known group with other ranks",
           frame(changed(plain(FrameKind::kGroup, 0, 52), [](Frame& f) { f.key = kKey; }),
                 group_body(2, {1, 2}, "tp"))},
          {"failure cut short", frame(plain(FrameKind::kAbort, 0, 3), "abc")},
          {"snapshot cut short", frame(plain(FrameKind::kSnapshot, 0, 3), "abc")},
          {"frame after the last", [](Receiver& receiver) {
             receiver.receive(plain(FrameKind::kClose, 0));
             receiver.receive(plain(FrameKind::kSnapshotRequest, 1));
           }}};
}

TEST(FrameDecoder, FramesThatBreakTheProtocol_AreRefused) {
  for (const auto& cases : {bad_posts(), bad_messages(), bad_control_frames()}) {
    for (const BadFrame& item : cases) {
      SCOPED_TRACE(item.what);
      Receiver receiver;
      try {
        item.send(receiver);
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kFormat) << error.what();
      }
    }
  }
}

TEST(FrameDecoder, GroupOfAnotherName_IsADesync) {
  Receiver receiver;
  Frame frame = plain(FrameKind::kGroup, 0, 52);
  frame.key = kKey;
  try {
    receiver.receive(frame, group_body(2, {0, 1}, "dp"));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDesync);
    EXPECT_THAT(error.what(), HasSubstr("is dp on rank 1, tp on rank 0"));
  }
}

TEST(RankSnapshot, OfAWaitingRank_RestoresItsState) {
  // Rank 1's replica has the groups in another order.
  const auto there = SharedSegment::create_replica(3, 1),
             here = SharedSegment::create_replica(3, 0);
  const uint32_t pair = there->join_group(3, std::vector{1, 2}, "pair");
  here->join_group(kKey, std::vector{0, 1}, "tp");
  const uint32_t pair_here = here->join_group(3, std::vector{1, 2}, "pair");
  RankSlot& slot = there->rank(1);
  slot.state.store(RankState::kJoined);
  slot.pid.store(4242);
  slot.step.store(37);
  for (int i = 0; i < 300; ++i) {
    CallHeader header{};
    header.op = Op::kBarrier;
    header.dtype = static_cast<uint8_t>(DType::kU8);
    header.sequence = static_cast<uint64_t>(i) + 1;
    header.group = pair;
    log_end(slot, log_begin(slot, header, "loss"));
  }
  there->member(there->group(pair), 0).stamp.store(299);
  slot.wait_kind.store(WaitKind::kGroup);
  slot.wait_group.store(pair);
  slot.wait_stamp.store(300);
  slot.wait_peer.store(2);
  slot.wait_epoch.store(5);
  slot.uses_many_threads.store(1);
  there->ring(1, 2).head.store(3);
  there->ring(2, 1).tail.store(4);

  apply_snapshot(*here, 0, 1, take_snapshot(*there, 1, std::vector{pair}));

  EXPECT_EQ(here->rank(1).pid.load(), 4242);
  EXPECT_EQ(describe_place(*here, 1), "after barrier 300 on axis pair at loss");
  EXPECT_EQ(describe_step(*here, 1), " in step 37");
  EXPECT_EQ(here->rank(1).wait_group.load(), pair_here);
  EXPECT_EQ(here->rank(1).wait_epoch.load(), 5U);
  EXPECT_EQ(here->rank(1).wait_kind.load(), WaitKind::kGroup);
  EXPECT_EQ(here->rank(1).wait_stamp.load(), 300U);
  EXPECT_EQ(here->rank(1).wait_peer.load(), 2);
  EXPECT_EQ(here->rank(1).uses_many_threads.load(), 1U);
  EXPECT_EQ(here->rank(1).state.load(), RankState::kJoined);
  EXPECT_EQ(here->member(here->group(pair_here), 0).stamp.load(), 299U);
  EXPECT_EQ(here->channel_ends(1, 2)->head.load(), 3U);
  EXPECT_EQ(here->channel_ends(2, 1)->tail.load(), 4U);
  // Operations that were not in the snapshot are unknown, not wrong.
  EXPECT_EQ(log_read(here->rank(1), 299).sequence, 300U);
  EXPECT_EQ(log_read(here->rank(1), 250).op, Op::kNone);
}

TEST(RankSnapshot, OfAnImpossibleRank_IsRefused) {
  const std::vector<std::function<void(RankSlot&)>> changes{
      [](RankSlot& slot) { slot.state.store(static_cast<RankState>(9)); },
      [](RankSlot& slot) { slot.wait_kind.store(static_cast<WaitKind>(9)); },
      [](RankSlot& slot) { slot.wait_peer.store(3); },
      [](RankSlot& slot) { slot.wait_peer.store(-1); }};
  for (size_t i = 0; i <= changes.size(); ++i) {
    SCOPED_TRACE(i);
    Receiver receiver;
    const auto there = SharedSegment::create_replica(3, 1);
    const std::vector groups{there->join_group(kKey, std::vector{0, 1}, "tp")};
    RankSlot& slot = there->rank(1);
    slot.state.store(RankState::kJoined);
    slot.wait_kind.store(WaitKind::kRecv);
    slot.wait_group.store(groups[0]);
    slot.wait_peer.store(2);
    slot.wait_epoch.store(1);
    if (i < changes.size()) changes[i](slot);
    const auto apply = [&] {
      apply_snapshot(*receiver.segment, 0, 1, take_snapshot(*there, 1, groups));
    };
    if (i == changes.size()) {
      EXPECT_NO_THROW(apply());
    } else {
      EXPECT_EQ(test::thrown_by(apply).code(), Code::kFormat);
    }
  }
}

TEST(RankSnapshot, ChangedInAnyByte_IsAppliedOrRefused) {
  const auto there = SharedSegment::create_replica(3, 1);
  const uint32_t group = there->join_group(kKey, std::vector{0, 1}, "tp");
  CallHeader header{};
  header.group = group;
  header.dtype = static_cast<uint8_t>(DType::kF32);
  log_begin(there->rank(1), header, "x");
  there->ring(1, 0);
  const auto whole = take_snapshot(*there, 1, std::vector{group});
  Receiver receiver;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int bit : {0, 6, 7}) {
      auto bytes = whole;
      bytes[i] ^= std::byte{1} << bit;
      try {
        apply_snapshot(*receiver.segment, 0, 1, bytes);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kFormat) << error.what();
      }
    }
    EXPECT_THROW(apply_snapshot(*receiver.segment, 0, 1, std::span(whole).first(i)), Error);
  }
}

}  // namespace
}  // namespace cleave::frame_decoder_test
