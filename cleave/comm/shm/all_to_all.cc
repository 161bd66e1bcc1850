#include <algorithm>
#include <cstring>
#include <numeric>

#include "cleave/comm/api/overlap.h"
#include "cleave/comm/hosts/host_links.h"
#include "cleave/comm/shm/collectives.h"

// 1. Every member writes to its payload how many bytes it sends to and expects from each member,
//    followed by the data that it sends, if it fits. So a small all-to-all needs no further step.
// 2. All members compare the sizes. The sizes also show whose data was in the payload.
// 3. The data that did not fit: threads read it in place; otherwise it is sent in pieces, with a
//    part of the payload for each member. Between hosts, members of one host do the same in the
//    memory that they share.

namespace cleave::inline comm {
namespace {

constexpr int64_t kLine = 64;

int64_t sum(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

/// One all-to-all of one member.
class AllToAll {
 public:
  /// With has_data = false only the sizes are exchanged.
  AllToAll(CollectiveSync& sync, const Traffic& traffic, const Buffers& buffers, bool has_data,
           HostLinks* links = nullptr)
      : sync_(sync),
        traffic_(traffic),
        buffers_(buffers),
        links_(links),
        n_(traffic.send.size()),
        self_(static_cast<size_t>(sync.member())) {
    data_at_ = (static_cast<int64_t>(2 * n_ * sizeof(int64_t)) + kLine - 1) / kLine * kLine;
    // Between hosts the whole payload is sent to all members, so it holds no data for single ones.
    const bool holds_data = has_data && !sync.is_between_hosts();
    capacity_ = holds_data ? sync.payload_bytes() - data_at_ : 0;
  }

  /// Steps 1 and 2.
  void agree() {
    std::byte* payload = sync_.payload();
    const size_t bytes = n_ * sizeof(int64_t);
    std::memcpy(payload, traffic_.send.data(), bytes);
    std::memcpy(payload + bytes, traffic_.recv.data(), bytes);
    const int64_t total = sum(traffic_.send);
    if (total <= capacity_ && total > 0) {
      std::memcpy(payload + data_at_, buffers_.in, static_cast<size_t>(total));
    }
    sync_.declare_send_all(static_cast<int64_t>(2 * bytes));
    sync_.agree();
    sizes_.resize(n_ * 2 * n_);
    for (size_t m = 0; m < n_; ++m) {
      std::memcpy(&sizes_[m * 2 * n_], sync_.payload_of(static_cast<int>(m)), 2 * bytes);
    }
    check_sizes();
  }

  /// Step 3.
  void move() {
    bool all_fit = true;
    for (size_t m = 0; m < n_; ++m) all_fit = all_fit && fits(m);
    Result result(buffers_, fits(self_) ? 0 : sum(traffic_.send), sum(traffic_.recv));
    std::byte* out = result.data();
    for (size_t m = 0; m < n_; ++m) {
      if (fits(m)) copy_part(out, m, sync_.payload_of(static_cast<int>(m)) + data_at_);
      out += traffic_.recv[m];
    }
    if (!all_fit && sync_.is_direct()) {
      read_in_place(result.data());
    } else if (!all_fit) {
      read_pieces(result.data());
      if (links_ != nullptr) read_on_host(result.data());
    }
    result.finish();
  }

 private:
  [[nodiscard]] std::span<const int64_t> sent_by(size_t member) const {
    return std::span(sizes_).subspan(member * 2 * n_, n_);
  }
  [[nodiscard]] std::span<const int64_t> expected_by(size_t member) const {
    return std::span(sizes_).subspan((member * 2 + 1) * n_, n_);
  }

  /// Throws Error(kDesync) on all members unless all expect what the others send.
  void check_sizes() {
    for (size_t from = 0; from < n_; ++from) {
      for (size_t to = 0; to < n_; ++to) {
        const int64_t sent = sent_by(from)[to], expected = expected_by(to)[from];
        if (sent == expected) continue;
        const SharedSegment& segment = sync_.endpoint().segment();
        const GroupEntry& group = segment.group(sync_.group());
        const auto ranks = segment.group_ranks(group);
        sync_.fail_desync(str("all_to_all on axis ", group.name, ": rank ", ranks[from], " sends ",
                              sent, " bytes to rank ", ranks[to], ", which expects ", expected,
                              " bytes; they must be equal"));
      }
    }
  }

  /// Whether a member's data fits into its payload at agree().
  [[nodiscard]] bool fits(size_t member) const { return sum(sent_by(member)) <= capacity_; }

  /// Copies what a member sends to this one; `all` is everything that it sends.
  void copy_part(std::byte* out, size_t member, const std::byte* all) const {
    const auto sent = sent_by(member);
    if (sent[self_] > 0) {
      std::memcpy(out, all + sum(sent.first(self_)), static_cast<size_t>(sent[self_]));
    }
  }

  void read_in_place(std::byte* out) {
    const auto inputs = sync_.direct_inputs(0);
    sync_.begin_touch();
    for (size_t m = 0; m < n_; ++m) {
      if (!fits(m)) copy_part(out, m, static_cast<const std::byte*>(inputs[m]));
      out += traffic_.recv[m];
    }
    sync_.end_touch();
    sync_.barrier();
  }

  /// The largest part that two members exchange through their payloads piece by piece.
  [[nodiscard]] int64_t largest_part() const {
    int64_t largest = 0;
    for (size_t m = 0; m < n_; ++m) {
      if (fits(m)) continue;
      for (size_t to = 0; to < n_; ++to) {
        if (!are_together(m, to)) largest = std::max(largest, sent_by(m)[to]);
      }
    }
    return largest;
  }

  /// Puts the pieces from offset `from` of this member's parts into its payload, `limit` bytes
  /// for each receiver.
  void send_pieces(int64_t from, int64_t limit) {
    const std::byte* in = buffers_.in;
    for (size_t m = 0; m < n_; ++m) {
      const size_t size = are_together(self_, m) ? 0 : piece(traffic_.send[m], from, limit);
      const auto place = static_cast<int64_t>(m) * limit;
      if (size > 0) std::memcpy(sync_.payload() + place, in + from, size);
      sync_.declare_send(static_cast<int>(m), {static_cast<uint64_t>(place), size});
      in += traffic_.send[m];
    }
  }

  void read_pieces(std::byte* result) {
    const int64_t limit = sync_.payload_bytes() / static_cast<int64_t>(n_) / kLine * kLine;
    const int64_t end = largest_part();
    for (int64_t from = 0; from < end; from += limit) {
      if (!fits(self_)) send_pieces(from, limit);
      sync_.barrier();
      std::byte* out = result;
      for (size_t m = 0; m < n_; ++m) {
        const bool is_here = fits(m) || are_together(self_, m);
        const size_t size = is_here ? 0 : piece(traffic_.recv[m], from, limit);
        const std::byte* part =
            sync_.payload_of(static_cast<int>(m)) + static_cast<int64_t>(self_) * limit;
        if (size > 0) std::memcpy(out + from, part, size);
        out += traffic_.recv[m];
      }
    }
  }

  /// The same among the members of this host. A member that is alone copies its part for itself.
  void read_on_host(std::byte* result) {
    HostBuffers& shared = *links_->buffers;
    const auto first = static_cast<size_t>(links_->layout.first_of(links_->layout.host));
    const auto count = static_cast<size_t>(links_->layout.num_local());
    const int64_t limit = shared.bytes() / static_cast<int64_t>(count) / kLine * kLine;
    const int64_t sent_before = sum(traffic_.send.first(first));
    const int64_t received_before = sum(traffic_.recv.first(first));
    int64_t end = 0;
    for (size_t m = first; m < first + count; ++m) {
      for (const int64_t bytes : sent_by(m).subspan(first, count)) end = std::max(end, bytes);
    }
    for (int64_t from = 0; from < end; from += limit) {
      const std::byte* in = buffers_.in + sent_before;
      for (size_t i = 0; i < count; ++i) {
        const size_t size = piece(traffic_.send[first + i], from, limit);
        const auto place = static_cast<int64_t>(i) * limit;
        if (size > 0) std::memcpy(shared.own() + place, in + from, size);
        in += traffic_.send[first + i];
      }
      shared.publish();
      std::byte* out = result + received_before;
      for (size_t i = 0; i < count; ++i) {
        const size_t size = piece(traffic_.recv[first + i], from, limit);
        const std::byte* part =
            shared.of(static_cast<int>(i)) + static_cast<int64_t>(self_ - first) * limit;
        if (size > 0) std::memcpy(out + from, part, size);
        out += traffic_.recv[first + i];
      }
    }
  }

  /// Whether two members exchange their data in the memory of their host.
  [[nodiscard]] bool are_together(size_t a, size_t b) const {
    return links_ != nullptr &&
           links_->layout.are_together(static_cast<int>(a), static_cast<int>(b));
  }

  /// Bytes of the piece at `from` of `bytes`: at most `limit`.
  static size_t piece(int64_t bytes, int64_t from, int64_t limit) {
    return static_cast<size_t>(std::clamp<int64_t>(bytes - from, 0, limit));
  }

  CollectiveSync& sync_;
  const Traffic& traffic_;
  const Buffers& buffers_;
  HostLinks* links_;  // nullptr: members of one host exchange their data like all others
  size_t n_, self_;
  int64_t data_at_ = 0, capacity_ = 0;  // of the data in the payload at agree()
  std::vector<int64_t> sizes_;          // [member][bytes sent to, bytes expected from][peer]
};

}  // namespace

void agree_on_all_to_all(CollectiveSync& sync, const Traffic& traffic) {
  AllToAll(sync, traffic, {}, false).agree();
}

void run_all_to_all(CollectiveSync& sync, const Traffic& traffic, const Buffers& buffers,
                    HostLinks* links) {
  AllToAll exchange(sync, traffic, buffers, true, links);
  exchange.agree();
  exchange.move();
}

}  // namespace cleave::inline comm
