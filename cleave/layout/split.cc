#include "cleave/layout/split.h"

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "cleave/base/error.h"

namespace cleave {
namespace {

using Flat = std::vector<std::vector<std::pair<int64_t, int64_t>>>;

Flat flat(const std::vector<std::vector<Range>>& ranges) {
  Flat out;
  for (const auto& mine : ranges) {
    auto& row = out.emplace_back();
    for (const Range& r : mine) row.emplace_back(r.begin, r.end);
  }
  return out;
}

}  // namespace

Split::Split(int64_t whole, std::vector<std::vector<Range>> ranges, std::string family)
    : whole_(whole), ranges_(std::move(ranges)), family_(std::move(family)) {
  places_.assign(static_cast<size_t>(whole), -1);
  int64_t place = 0;
  for (const auto& mine : ranges_) {
    int64_t width = 0;
    auto& owned = owned_.emplace_back();
    int64_t last = 0;
    for (const Range& r : mine) {
      CLEAVE_CHECK(0 <= r.begin && r.begin <= r.end && r.end <= whole, Code::kShape, "range [",
                   r.begin, ", ", r.end, ") is outside a dim of ", whole);
      CLEAVE_CHECK(last <= r.begin, Code::kShape, "a rank's ranges must be ascending; [", r.begin,
                   ", ", r.end, ") begins before ", last);
      last = r.end;
      width += r.size();
      for (int64_t i = r.begin; i < r.end; ++i, ++place) {
        int64_t& at = places_[static_cast<size_t>(i)];
        in_order_ = in_order_ && place == i;
        if (at >= 0) {
          overlaps_ = true;
          continue;
        }
        at = place;
        if (!owned.empty() && owned.back().end == i) {
          ++owned.back().end;
        } else {
          owned.push_back({i, i + 1});
        }
      }
    }
    widths_.push_back(width);
  }
  for (int64_t i = 0; i < whole; ++i) {
    CLEAVE_CHECK(places_[static_cast<size_t>(i)] >= 0, Code::kShape, "element ", i, " of a dim of ",
                 whole, " is on no rank");
  }
  if (in_order_) std::vector<int64_t>().swap(places_);  // with its memory, which = {} would keep
}

const Split* Split::intern(int64_t whole, std::vector<std::vector<Range>> ranges,
                           const std::string& family) {
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, Flat, std::string>, std::unique_ptr<const Split>> all;
  const std::lock_guard lock(mutex);
  auto& entry = all[{whole, flat(ranges), family}];
  if (!entry) entry.reset(new Split(whole, std::move(ranges), family));
  return entry.get();
}

const Split* Split::balanced(int64_t whole, int num_ranks, int64_t unit,
                             const std::string& family) {
  CLEAVE_CHECK(unit >= 1 && whole % unit == 0, Code::kShape, "a dim of ", whole,
               " cannot be cut in units of ", unit, "; the unit must divide it");
  const int64_t units = whole / unit;
  std::vector<std::vector<Range>> ranges;
  int64_t begin = 0;
  for (int r = 0; r < num_ranks; ++r) {
    const int64_t width = (units / num_ranks + (r < units % num_ranks ? 1 : 0)) * unit;
    ranges.push_back({{begin, begin + width}});
    begin += width;
  }
  return intern(whole, std::move(ranges), family);
}

}  // namespace cleave
