// Random bytes from two peers over the network: refused with an Error, or written into the peer's
// part of the segment; this rank's part stays unchanged, and all counters of peers stay within the
// protocol's limits. The first byte determines how many of every 16 bytes the first peer sends;
// 255: all of them.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/comm/net/frame_decoder.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::FrameDecoder;
using cleave::SharedSegment;
using cleave::fuzz::require;

/// A peer and the bytes that it sends.
struct Peer {
  FrameDecoder decoder;
  std::vector<uint8_t> bytes{};
  size_t sent = 0;
  bool is_refused = false;
};

/// Feeds the next bytes, divided anywhere, as from a socket.
void feed(Peer& peer, size_t most) {
  const auto buffer = peer.decoder.receive_buffer();
  require(!buffer.empty());
  const size_t count = std::min({buffer.size(), peer.bytes.size() - peer.sent, most});
  std::memcpy(buffer.data(), peer.bytes.data() + peer.sent, count);
  peer.sent += count;
  try {
    peer.decoder.advance(count);
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
  const auto segment = SharedSegment::create_replica(3, 0);
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
