#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cleave/comm/hosts/host_layout.h"
#include "cleave/comm/shm/blocks.h"

namespace cleave::inline comm {

/// The packed blocks of all members of a group, one after the other, as one stream of bytes.
class PackedStream {
 public:
  explicit PackedStream(const Blocks& blocks) : blocks_(blocks), starts_{0} {
    for (int m = 0; m < blocks.num_members(); ++m) {
      starts_.push_back(starts_.back() + blocks.block_bytes(m));
    }
  }

  [[nodiscard]] StreamRange whole() const { return {0, starts_.back()}; }
  /// The blocks of members [first, end).
  [[nodiscard]] StreamRange of_members(int first, int end) const {
    return {starts_[static_cast<size_t>(first)], starts_[static_cast<size_t>(end)]};
  }
  [[nodiscard]] StreamRange of_member(int member) const { return of_members(member, member + 1); }

  /// Copies a range out of the whole matrix (pack) or into it (unpack).
  void pack(const std::byte* matrix, const StreamRange& range, std::byte* to) const {
    for (int m = 0; m < blocks_.num_members(); ++m) {
      const StreamRange part = intersect(range, of_member(m));
      if (part.is_empty()) continue;
      blocks_.pack(matrix, m, part.begin - of_member(m).begin,
                   {to + (part.begin - range.begin), static_cast<size_t>(part.size())});
    }
  }
  void unpack(std::byte* matrix, const StreamRange& range, const std::byte* from) const {
    for (int m = 0; m < blocks_.num_members(); ++m) {
      const StreamRange part = intersect(range, of_member(m));
      if (part.is_empty()) continue;
      blocks_.unpack(matrix, m, part.begin - of_member(m).begin,
                     {from + (part.begin - range.begin), static_cast<size_t>(part.size())});
    }
  }

 private:
  const Blocks& blocks_;
  std::vector<int64_t> starts_;  // by member, then the end
};

}  // namespace cleave::inline comm
