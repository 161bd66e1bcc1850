#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cleave/base/range.h"

namespace cleave::inline layout {

class Split;
/// Keeps a split alive: keep it as long as a reference to a member of the split.
using SplitPtr = std::shared_ptr<const Split>;

/// How one dim of `whole` elements is sharded over the ranks of an axis: a list of ranges per rank.
///
/// Shards may be uneven, empty or overlapping (a KV head that several ranks need), and a rank may
/// have several ranges (fused QKV). Splits are interned: equal ones that are alive are one object,
/// so placements compare by pointer.
class Split {
 public:
  /// The unique Split with these ranges. Splits of one `family` ("heads 8/2 x 64") are consistent
  /// although their sizes differ, e.g. query and key columns. Throws Error(kShape) for ranges
  /// outside the dim, ranges of a rank that are not ascending, or elements that no rank holds.
  static SplitPtr intern(int64_t whole, std::vector<std::vector<Range>> ranges,
                         const std::string& family = "");

  /// Near-equal contiguous shards in multiples of `unit`, larger ones first: 6 units on 4 ranks are
  /// 2, 2, 1, 1. Throws Error(kShape) when `unit` does not divide `whole`.
  static SplitPtr balanced(int64_t whole, int num_ranks, int64_t unit = 1,
                           const std::string& family = "");

  [[nodiscard]] int64_t whole() const { return whole_; }
  [[nodiscard]] int num_ranks() const { return static_cast<int>(ranges_.size()); }
  /// The ranges that a rank holds, in the order of its local memory.
  [[nodiscard]] const std::vector<Range>& ranges(int rank) const {
    return ranges_[static_cast<size_t>(rank)];
  }
  /// Number of elements of a rank.
  [[nodiscard]] int64_t width(int rank) const { return widths_[static_cast<size_t>(rank)]; }
  [[nodiscard]] const std::vector<int64_t>& widths() const { return widths_; }
  [[nodiscard]] const std::string& family() const { return family_; }

  /// Whether some element is on several ranks.
  [[nodiscard]] bool overlaps() const { return overlaps_; }
  /// Whether the shards, concatenated in rank order, are the whole dim in order.
  [[nodiscard]] bool in_order() const { return in_order_; }
  /// The part of `rank`'s ranges of which it is the first holder. A rank writes only this part to
  /// files and counts only this part in norms.
  [[nodiscard]] const std::vector<Range>& owned(int rank) const {
    return owned_[static_cast<size_t>(rank)];
  }
  /// For each element of the whole dim, its index in the shards concatenated in rank order (first
  /// holder's). Empty if in_order().
  [[nodiscard]] const std::vector<int64_t>& places() const { return places_; }

 private:
  Split(int64_t whole, std::vector<std::vector<Range>> ranges, std::string family);
  int64_t whole_;
  std::vector<std::vector<Range>> ranges_, owned_;
  std::vector<int64_t> widths_, places_;
  std::string family_;
  bool overlaps_ = false, in_order_ = true;
};

}  // namespace cleave::inline layout
