#include "cleave/layout/split.h"

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cleave/base/error.h"

namespace cleave::inline layout {
namespace {

using RangesOfRanks = std::vector<std::vector<Range>>;

struct Entry {
  const Split* split;  // valid while the table is locked: it is deleted after its entry is erased
  std::weak_ptr<const Split> alive;
};

/// The splits that are alive, by the hash of their content.
struct Interned {
  std::recursive_mutex mutex;  // intern() may fail while it holds it, and then erases
  std::unordered_multimap<size_t, Entry> entries;
};

Interned& interned() {
  static auto* all = new Interned;  // never destroyed: splits of static objects outlive it
  return *all;
}

bool is_same(const Split& split, int64_t whole, const RangesOfRanks& ranges,
             const std::string& family) {
  if (split.whole() != whole || split.family() != family) return false;
  if (static_cast<size_t>(split.num_ranks()) != ranges.size()) return false;
  for (int r = 0; r < split.num_ranks(); ++r) {
    if (split.ranges(r) != ranges[static_cast<size_t>(r)]) return false;
  }
  return true;
}

size_t hash_of(int64_t whole, const RangesOfRanks& ranges, const std::string& family) {
  size_t hash = std::hash<std::string>()(family);
  const auto add = [&hash](int64_t number) {
    hash = hash * 0x9E3779B97F4A7C15U + static_cast<size_t>(number);
  };
  add(whole);
  for (const auto& of_rank : ranges) {
    add(-1);  // where a rank begins
    for (const Range& range : of_rank) {
      add(range.begin);
      add(range.end);
    }
  }
  return hash;
}

/// Called when the last owner of a split is gone.
void erase(const Split* split, size_t key) {
  Interned& all = interned();
  {
    const std::lock_guard lock(all.mutex);
    auto [at, end] = all.entries.equal_range(key);
    while (at != end && at->second.split != split) ++at;
    if (at != end) all.entries.erase(at);
  }
  delete split;
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
  if (in_order_) std::vector<int64_t>().swap(places_);  // frees the memory, which = {} would keep
}

SplitPtr Split::intern(int64_t whole, std::vector<std::vector<Range>> ranges,
                       const std::string& family) {
  const size_t key = hash_of(whole, ranges, family);
  Interned& all = interned();
  const std::lock_guard lock(all.mutex);
  const auto [begin, end] = all.entries.equal_range(key);
  for (auto at = begin; at != end; ++at) {
    if (!is_same(*at->second.split, whole, ranges, family)) continue;
    if (SplitPtr known = at->second.alive.lock()) return known;  // null: about to be erased
  }
  const auto* made = new Split(whole, std::move(ranges), family);
  SplitPtr split(made, [key](const Split* last) { erase(last, key); });
  all.entries.emplace(key, Entry{made, split});
  return split;
}

SplitPtr Split::balanced(int64_t whole, int num_ranks, int64_t unit, const std::string& family) {
  CLEAVE_CHECK(unit >= 1 && whole % unit == 0, Code::kShape, "a dim of ", whole,
               " cannot be sharded in units of ", unit, "; the unit must divide it");
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

}  // namespace cleave::inline layout
