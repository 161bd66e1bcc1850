// What two peers may send over the network, as any bytes: refused with an Error, or written into
// the segment where it belongs; this rank's own part of the segment stays as it was, and no counter of a
// peer leaves what the protocol allows. The first byte says how the rest is shared: bytes of 16 to
// the first peer for every 16 of both; 255: all to the first.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/comm/net/frame_decoder.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::SharedSegment;
using cleave::FrameDecoder;
using cleave::fuzz::require;

/// One peer and what it has to say.
struct Peer {
  FrameDecoder copy;
  std::vector<uint8_t> bytes{};
  size_t sent = 0;
  bool is_refused = false;
};

/// The next piece, as a socket gives it: cut anywhere.
void feed(Peer& peer, size_t most) {
  const auto room = peer.copy.room();
  require(!room.empty());
  const size_t count = std::min({room.size(), peer.bytes.size() - peer.sent, most});
  std::memcpy(room.data(), peer.bytes.data() + peer.sent, count);
  peer.sent += count;
  try {
    peer.copy.advance(count);
  } catch (const cleave::Error& error) {
    const cleave::Code code = error.code();
    require(code == cleave::Code::kFormat || code == cleave::Code::kDesync ||
            code == cleave::Code::kMemory);
    peer.is_refused = true;  // the connection ends here
  }
}

void share(std::span<const uint8_t> input, std::vector<Peer>& peers) {
  const size_t first = input.front();
  const size_t of_16 = first == 255 ? 16 : first % 17;
  for (size_t i = 0; i + 1 < input.size(); ++i) {
    peers[i % 16 < of_16 ? 0 : 1].bytes.push_back(input[i + 1]);
  }
}

void check_segment(SharedSegment& segment, const cleave::GroupEntry& entry) {
  require(segment.member(entry, 0).stamp.load() == 1);
  for (const int member : {1, 2}) require(segment.member(entry, member).stamp.load() <= 2);
  require(segment.ring(0, 1).head.load() == 2 && segment.ring(0, 1).tail.load() <= 2);
  require(segment.ring(0, 2).head.load() == 0 && segment.ring(0, 2).tail.load() == 0);
  for (const int peer : {1, 2}) {
    const auto& ring = segment.ring(peer, 0);
    require(ring.head.load() - ring.tail.load() <= cleave::kNumChunks);
  }
  require(segment.rank(0).num_operations.load() == 0 && segment.rank(0).wait_epoch.load() == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto segment = SharedSegment::create_mirror(3, 0);
  const std::vector<int> ranks{0, 1, 2};
  const cleave::GroupEntry& entry = segment->group(segment->join_group(7, ranks, "tp"));
  segment->member(entry, 0).stamp.store(1);
  segment->ring(0, 1).head.store(2);
  std::vector<Peer> peers;
  for (const int peer : {1, 2}) peers.push_back({FrameDecoder(*segment, 0, peer)});
  share({data, size}, peers);
  const auto is_open = [](const Peer& peer) {
    return !peer.is_refused && peer.sent < peer.bytes.size();
  };
  for (size_t turn = 0; is_open(peers[0]) || is_open(peers[1]); ++turn) {
    Peer& peer = peers[is_open(peers[turn % 2]) ? turn % 2 : 1 - turn % 2];
    feed(peer, 1 + turn * 37 % 400);
    check_segment(*segment, entry);
  }
  return 0;
}
