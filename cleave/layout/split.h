#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cleave/base/range.h"

namespace cleave {

/// How one dim of `whole` elements is cut over the ranks of an axis: a list of ranges per rank.
///
/// Uneven, empty, overlapping (a KV head that several ranks need) and several ranges per rank
/// (fused QKV) are legal. Splits are interned: equal ones are one object that lives for the
/// process, so layouts compare by pointer.
class Split {
 public:
  /// `family` names what is cut ("heads 8/2 x 64"): splits of one family belong together although
  /// their sizes differ (query and key columns). Throws Error(kShape) for ranges outside the whole
  /// or elements that nobody holds.
  static const Split* intern(int64_t whole, std::vector<std::vector<Range>> ranges,
                             const std::string& family = "");

  /// Near-equal contiguous cuts in multiples of `unit`, larger ones first: 6 units on 4 ranks are
  /// 2, 2, 1, 1. Throws Error(kShape) when `unit` does not divide `whole`.
  static const Split* balanced(int64_t whole, int num_ranks, int64_t unit = 1,
                               const std::string& family = "");

  [[nodiscard]] int64_t whole() const { return whole_; }
  [[nodiscard]] int num_ranks() const { return static_cast<int>(ranges_.size()); }
  /// What a rank holds, in the order it holds it.
  [[nodiscard]] const std::vector<Range>& ranges(int rank) const {
    return ranges_[static_cast<size_t>(rank)];
  }
  /// Elements of a rank.
  [[nodiscard]] int64_t width(int rank) const { return widths_[static_cast<size_t>(rank)]; }
  [[nodiscard]] const std::vector<int64_t>& widths() const { return widths_; }
  [[nodiscard]] const std::string& family() const { return family_; }

  /// Some element is on several ranks.
  [[nodiscard]] bool overlaps() const { return overlaps_; }
  /// The blocks in rank order, joined, are the whole in order.
  [[nodiscard]] bool in_order() const { return in_order_; }
  /// Of `rank`'s ranges, those whose first holder it is: what it writes to files and counts in
  /// norms.
  [[nodiscard]] const std::vector<Range>& owned(int rank) const {
    return owned_[static_cast<size_t>(rank)];
  }
  /// For each element of the whole, its place in the blocks joined in rank order (first holder's).
  [[nodiscard]] const std::vector<int64_t>& places() const { return places_; }

 private:
  Split(int64_t whole, std::vector<std::vector<Range>> ranges, std::string family);
  int64_t whole_;
  std::vector<std::vector<Range>> ranges_, owned_;
  std::vector<int64_t> widths_, places_;
  std::string family_;
  bool overlaps_ = false, in_order_ = true;
};

}  // namespace cleave
