#include <algorithm>
#include <cstring>
#include <vector>

#include "cleave/comm/api/overlap.h"
#include "cleave/comm/hosts/host_collectives.h"
#include "cleave/comm/hosts/packed_stream.h"

// Each host's blocks are one stream that its lanes share. For every piece, the members of a host
// show each other their blocks, the lanes' members exchange them between hosts, and show their own
// host what they received.

namespace cleave::inline comm {
namespace {

/// One all-gather of one member.
class HostGather {
 public:
  HostGather(HostLinks& links, const Blocks& blocks)
      : links_(links), layout_(links.layout), stream_(blocks) {
    const int64_t lane = largest_host_bytes(layout_, blocks) / layout_.num_lanes;
    piece_ = round_up_to_line(std::clamp<int64_t>(lane, 1, HostExchange::kBufferBytes));
    for (int host = 0; host < layout_.num_hosts(); ++host) {
      const StreamRange of_host =
          stream_.of_members(layout_.first_of(host), layout_.first_of(host + 1));
      pieces_.emplace_back(of_host, layout_.num_lanes, piece_);
      num_pieces_ = std::max(num_pieces_, pieces_.back().count());
    }
  }

  /// `own` is this member's packed block, which may be part of `out` if it is already in place.
  void run(const std::byte* own, std::byte* out) {
    for (int64_t index = 0; index < num_pieces_; ++index) {
      show_own(index, own, out);
      if (layout_.has_lane()) exchange(index);
      for (int host = 0; host < layout_.num_hosts(); ++host) {
        if (host != layout_.host) show_received(host, index, out);
      }
    }
  }

 private:
  [[nodiscard]] const LanePieces& pieces_of(int host) const {
    return pieces_[static_cast<size_t>(host)];
  }

  /// Calls work(within) for parts of a piece of at most `bytes`, as far as the host's longest lane
  /// has this piece.
  template <class Work>
  void for_each_part(int host, int64_t index, int64_t bytes, const Work& work) const {
    const int64_t size = pieces_of(host).at(0, index).size();  // lane 0 is never shorter
    for (int64_t from = 0; from < size; from += bytes) work(StreamRange{from, from + bytes});
  }

  void show_own(int64_t index, const std::byte* own, std::byte* out) {
    const LanePieces& pieces = pieces_of(layout_.host);
    const int64_t part = links_.buffers->bytes() / layout_.num_lanes / 64 * 64;
    const int first = layout_.first_of(layout_.host);
    const StreamRange own_block = stream_.of_member(first + layout_.local);
    for_each_part(layout_.host, index, part, [&](const StreamRange& within) {
      std::byte* const shown = links_.buffers->own();
      for (int lane = 0; lane < layout_.num_lanes; ++lane) {
        const StreamRange range = pieces.at(lane, index, within);
        const StreamRange mine = intersect(range, own_block);
        if (mine.is_empty()) continue;
        std::memcpy(shown + lane * part + (mine.begin - range.begin),
                    own + (mine.begin - own_block.begin), static_cast<size_t>(mine.size()));
      }
      links_.buffers->publish();
      for (int lane = 0; lane < layout_.num_lanes; ++lane) {
        const StreamRange range = pieces.at(lane, index, within);
        for (int m = 0; m < layout_.num_local(); ++m) {
          const StreamRange theirs = intersect(range, stream_.of_member(first + m));
          if (theirs.is_empty()) continue;
          const std::byte* const from =
              links_.buffers->of(m) + lane * part + (theirs.begin - range.begin);
          stream_.unpack(out, theirs, from);
          if (lane != layout_.local) continue;
          const int64_t place = theirs.begin - pieces.at(lane, index).begin;
          std::memcpy(links_.exchange->buffer() + place, from, static_cast<size_t>(theirs.size()));
        }
      }
    });
  }

  void exchange(int64_t index) {
    std::vector<ByteRange> to, from;
    for (int host = 0; host < layout_.num_hosts(); ++host) {
      to.push_back({0, pieces_of(layout_.host).at(layout_.local, index).size()});
      from.push_back({0, pieces_of(host).at(layout_.local, index).size()});
    }
    links_.exchange->exchange(to, from);
  }

  void show_received(int host, int64_t index, std::byte* out) {
    const LanePieces& pieces = pieces_of(host);
    for_each_part(host, index, links_.buffers->bytes(), [&](const StreamRange& within) {
      const StreamRange mine =
          layout_.has_lane() ? pieces.at(layout_.local, index, within) : StreamRange{};
      if (!mine.is_empty()) {
        std::memcpy(links_.buffers->own(), links_.exchange->received(host) + within.begin,
                    static_cast<size_t>(mine.size()));
      }
      links_.buffers->publish();
      for (int lane = 0; lane < layout_.num_lanes; ++lane) {
        const StreamRange range = pieces.at(lane, index, within);
        if (!range.is_empty()) stream_.unpack(out, range, links_.buffers->of(lane));
      }
    });
  }

  HostLinks& links_;
  const HostLayout& layout_;
  PackedStream stream_;
  int64_t piece_ = 0;               // bytes
  std::vector<LanePieces> pieces_;  // by host
  int64_t num_pieces_ = 0;
};

}  // namespace

int64_t largest_host_bytes(const HostLayout& layout, const Blocks& blocks) {
  const PackedStream stream(blocks);
  int64_t largest = 0;
  for (int host = 0; host < layout.num_hosts(); ++host) {
    largest = std::max(largest,
                       stream.of_members(layout.first_of(host), layout.first_of(host + 1)).size());
  }
  return largest;
}

void host_all_gather(HostLinks& links, const Blocks& blocks, const Buffers& buffers) {
  const int self = links.layout.first_of(links.layout.host) + links.layout.local;
  const KeptInput own(buffers, blocks.block_bytes(self), blocks.rows() * blocks.whole_row_bytes());
  HostGather(links, blocks).run(own.data(), buffers.out);
}

void host_broadcast(HostLinks& links, int root, std::span<std::byte> data) {
  // A broadcast is an all-gather to which only the root adds bytes. They are already in place.
  std::vector<int64_t> widths(static_cast<size_t>(links.layout.first.back()));
  widths[static_cast<size_t>(root)] = static_cast<int64_t>(data.size());
  const Blocks blocks(1, widths, 1);
  HostGather(links, blocks).run(data.data(), data.data());
}

}  // namespace cleave::inline comm
