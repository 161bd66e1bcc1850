#include "cleave/tokenizer/split.h"

namespace cleave {

SplitBehavior read_split_behavior(const Json& json) {
  const std::string& name = json.as_string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  json.fail("expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

/// Whether the next span belongs to the one that waits.
bool Splitter::joins(bool is_delimiter) const {
  if (begin_ == end_) return false;
  switch (behavior_) {
    case SplitBehavior::kMergedWithPrevious:
      return is_delimiter && !is_delimiter_;
    case SplitBehavior::kMergedWithNext:
      return !is_delimiter && is_delimiter_;
    case SplitBehavior::kContiguous:
      return is_delimiter == is_delimiter_;
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated:
      return false;
  }
  return false;
}

void Splitter::add(size_t begin, size_t end, bool is_delimiter) {
  if (begin == end) return;
  if (joins(is_delimiter)) {
    end_ = end;
  } else {
    finish();
    const bool keep = !is_delimiter || behavior_ != SplitBehavior::kRemoved;
    begin_ = begin;
    end_ = keep ? end : begin;
  }
  is_delimiter_ = is_delimiter;
}

void Splitter::finish() {
  if (begin_ < end_) emit_(begin_, end_);
  begin_ = end_ = 0;
}

}  // namespace cleave
