#include "cleave/comm/net/frame_decoder.h"

#include <algorithm>
#include <cstring>

#include "cleave/comm/api/operation.h"
#include "cleave/comm/net/frame.h"
#include "cleave/comm/shm/futex.h"

namespace cleave::inline comm {
namespace {

template <class T>
T read_as(std::span<const std::byte> bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

bool has_rank(std::span<const int32_t> ranks, int rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

/// The text of a fixed-size field that a peer wrote; it may lack the terminating null.
template <size_t kSize>
std::string text_of(const char (&field)[kSize]) {
  return {field, std::find(field, field + kSize, '\0')};
}

bool is_code(int32_t value) {
  return (value >= static_cast<int>(Code::kUsage) && value <= static_cast<int>(Code::kMemory)) ||
         value == static_cast<int>(Code::kBug);
}

}  // namespace

std::span<std::byte> FrameDecoder::receive_buffer() {
  if (in_body_) return body_.subspan(filled_);
  return {reinterpret_cast<std::byte*>(&frame_) + filled_, sizeof(Frame) - filled_};
}

void FrameDecoder::advance(size_t count) {
  filled_ += count;
  if (filled_ < (in_body_ ? body_.size() : sizeof(Frame))) return;
  if (!in_body_) {
    begin_body();
    filled_ = 0;
    in_body_ = true;
    if (!body_.empty()) return;
  }
  in_body_ = false;
  filled_ = 0;
  finish();
}

void FrameDecoder::begin_body() {
  frame_.note.site[sizeof(frame_.note.site) - 1] = '\0';
  CLEAVE_CHECK(!has_ended_, Code::kFormat, "rank ", peer_, " sent a frame after its last one");
  if (frame_.kind == FrameKind::kPost) return begin_post();
  if (frame_.kind == FrameKind::kChunk) return begin_chunk();
  CLEAVE_CHECK(frame_.bytes <= kMaxBodyBytes, Code::kFormat, "rank ", peer_, " sent a frame of ",
               frame_.bytes, " bytes; at most ", kMaxBodyBytes, " are allowed");
  body_copy_.resize(frame_.bytes);
  body_ = body_copy_;
}

void FrameDecoder::finish() {
  switch (frame_.kind) {
    case FrameKind::kGroup:
      return finish_group();
    case FrameKind::kPost:
      return finish_post();
    case FrameKind::kChunk:
      return finish_chunk();
    case FrameKind::kAck:
      return finish_ack();
    case FrameKind::kSnapshotRequest:
      last_request_ = frame_.number;
      return;
    case FrameKind::kSnapshot:
      apply_snapshot(segment_, self_, peer_, body_copy_);
      last_answer_ = frame_.number;
      return;
    case FrameKind::kAbort:
      return finish_abort();
    case FrameKind::kClose:
      has_ended_ = true;
      return;
  }
  throw Error(Code::kFormat, str("rank ", peer_, " sent a frame of unknown kind ",
                                 static_cast<uint32_t>(frame_.kind)));
}

MemberSlot& FrameDecoder::peer_slot(const GroupEntry& entry) const {
  const auto ranks = segment_.group_ranks(entry);
  const auto member = std::lower_bound(ranks.begin(), ranks.end(), peer_) - ranks.begin();
  return segment_.member(entry, static_cast<int>(member));
}

void FrameDecoder::begin_post() {
  // A post that only synchronizes may have no call yet.
  CLEAVE_CHECK(frame_.header.op == Op::kNone || has_dtype(frame_.header.dtype), Code::kFormat,
               "rank ", peer_, " sent a call of dtype ", int{frame_.header.dtype});
  const auto index = segment_.find_group(frame_.key);
  CLEAVE_CHECK(index.has_value(), Code::kFormat, "rank ", peer_, " posted to an unknown group");
  group_ = *index;
  const GroupEntry& entry = segment_.group(group_);
  const auto ranks = segment_.group_ranks(entry);
  CLEAVE_CHECK(has_rank(ranks, peer_) && has_rank(ranks, self_), Code::kFormat, "rank ", peer_,
               " posted to axis ", entry.name, ", which it does not share with rank ", self_);
  const auto self = std::lower_bound(ranks.begin(), ranks.end(), self_) - ranks.begin();
  const auto peer = std::lower_bound(ranks.begin(), ranks.end(), peer_) - ranks.begin();
  // Posts come in order and at most one ahead of this rank, which may still read the previous one.
  const uint32_t own = segment_.member(entry, static_cast<int>(self)).stamp.load();
  CLEAVE_CHECK(frame_.number == peer_slot(entry).stamp.load() + 1 &&
                   static_cast<int32_t>(frame_.number - own) <= 1,
               Code::kFormat, "rank ", peer_, " made post ", frame_.number, " to axis ", entry.name,
               "; its last one was ", peer_slot(entry).stamp.load(), ", that of rank ", self_,
               " was ", own);
  CLEAVE_CHECK(
      frame_.offset <= entry.payload_bytes && frame_.bytes <= entry.payload_bytes - frame_.offset,
      Code::kFormat, "rank ", peer_, " posted ", frame_.bytes, " bytes at ", frame_.offset,
      " to axis ", entry.name, ", whose payload has ", entry.payload_bytes, " bytes");
  std::byte* payload = segment_.payload(entry, static_cast<int>(peer), frame_.number % 2);
  body_ = {payload + frame_.offset, frame_.bytes};
}

void FrameDecoder::finish_post() {
  MemberSlot& slot = peer_slot(segment_.group(group_));
  const uint32_t copy = frame_.number % 2;
  slot.header[copy] = frame_.header;
  slot.header[copy].group = group_;  // the index of a group differs between replicas
  slot.digest[copy] = digest(slot.header[copy]);
  slot.note[copy] = frame_.note;
  slot.stamp.store(frame_.number, std::memory_order_seq_cst);
  if (slot.num_sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(slot.stamp);
}

void FrameDecoder::begin_chunk() {
  const MessageRing& ring = segment_.ring(peer_, self_);
  const uint32_t head = ring.head.load(), tail = ring.tail.load();
  CLEAVE_CHECK(frame_.number == head && head - tail < kNumChunks && frame_.bytes <= kChunkBytes &&
                   segment_.find_group(frame_.key).has_value(),
               Code::kFormat, "rank ", peer_, " sent chunk ", frame_.number,
               " of its messages with ", frame_.bytes, " bytes; expected chunk ", head);
  CLEAVE_CHECK(has_dtype(frame_.header.dtype), Code::kFormat, "rank ", peer_,
               " sent a message of dtype ", int{frame_.header.dtype});
  uint64_t bytes = 0;
  const auto item = static_cast<uint64_t>(item_bytes(static_cast<DType>(frame_.header.dtype)));
  CLEAVE_CHECK(!__builtin_mul_overflow(frame_.header.count, item, &bytes) &&
                   bytes == frame_.offset && frame_.bytes <= bytes,
               Code::kFormat, "rank ", peer_, " sent a message of ", frame_.offset, " bytes as ",
               frame_.header.count, " elements of ", item, " bytes");
  MessageRing& own = segment_.ring(peer_, self_);
  body_ = {own.chunks[head % kNumChunks].data, frame_.bytes};
}

void FrameDecoder::finish_chunk() {
  MessageRing& ring = segment_.ring(peer_, self_);
  MessageChunk& chunk = ring.chunks[frame_.number % kNumChunks];
  chunk.header = frame_.header;
  chunk.header.group = segment_.find_group(frame_.key).value_or(0);
  chunk.note = frame_.note;
  chunk.message_bytes = frame_.offset;
  chunk.bytes = frame_.bytes;
  ring.head.store(frame_.number + 1, std::memory_order_seq_cst);
  if (ring.num_waiting_receivers.load(std::memory_order_seq_cst) != 0) futex_wake_all(ring.head);
}

void FrameDecoder::finish_ack() {
  MessageRing& ring = segment_.ring(self_, peer_);
  const uint32_t head = ring.head.load(), tail = ring.tail.load();
  CLEAVE_CHECK(frame_.number - tail <= head - tail, Code::kFormat, "rank ", peer_,
               " has read message chunk ", frame_.number, "; ", head, " were sent");
  ring.tail.store(frame_.number, std::memory_order_seq_cst);
  if (ring.num_waiting_senders.load(std::memory_order_seq_cst) != 0) futex_wake_all(ring.tail);
}

void FrameDecoder::finish_group() {
  CLEAVE_CHECK(body_copy_.size() >= sizeof(GroupBody), Code::kFormat, "rank ", peer_,
               " announced a group in ", body_copy_.size(), " bytes");
  const auto head = read_as<GroupBody>(body_copy_);
  const auto rest = std::span(body_copy_).subspan(sizeof(GroupBody));
  CLEAVE_CHECK(head.num_ranks > 0 && head.num_ranks <= segment_.num_ranks() &&
                   rest.size() == static_cast<size_t>(head.num_ranks) * sizeof(int32_t),
               Code::kFormat, "rank ", peer_, " announced a group of ", head.num_ranks,
               " ranks in ", rest.size(), " bytes");
  std::vector<int32_t> ranks(static_cast<size_t>(head.num_ranks));
  std::memcpy(ranks.data(), rest.data(), rest.size());
  const bool ascends =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  CLEAVE_CHECK(frame_.key != 0 && ascends && ranks.front() >= 0 &&
                   ranks.back() < segment_.num_ranks() && has_rank(ranks, peer_),
               Code::kFormat, "rank ", peer_, " announced a group of invalid ranks");
  const std::string name = text_of(head.name);
  const GroupEntry& known = segment_.group(segment_.join_group(frame_.key, ranks, name));
  const auto known_ranks = segment_.group_ranks(known);
  CLEAVE_CHECK(std::equal(ranks.begin(), ranks.end(), known_ranks.begin(), known_ranks.end()),
               Code::kFormat, "rank ", peer_, " announced group ", name, " with other ranks");
  CLEAVE_CHECK(known.name == name, Code::kDesync, "a group of ", ranks.size(), " ranks is ", name,
               " on rank ", peer_, ", ", known.name, " on rank ", self_,
               "; make groups in the same order on all ranks");
}

void FrameDecoder::finish_abort() {
  CLEAVE_CHECK(body_copy_.size() == sizeof(AbortBody), Code::kFormat, "rank ", peer_,
               " reported a failure in ", body_copy_.size(), " bytes; expected ",
               sizeof(AbortBody));
  const auto body = read_as<AbortBody>(body_copy_);
  segment_.abort({.rank = body.rank >= 0 && body.rank < segment_.num_ranks() ? body.rank : peer_,
                  .code = is_code(body.code) ? static_cast<Code>(body.code) : Code::kPeer,
                  .step = body.step,
                  .sequence = body.sequence,
                  .op = body.op,
                  .group = text_of(body.group),
                  .text = text_of(body.text)});
}

}  // namespace cleave::inline comm
