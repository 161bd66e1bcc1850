#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "cleave/text/json.h"

namespace cleave {

/// What becomes of the delimiters that a text is split at.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,            ///< each is a piece of its own
  kMergedWithPrevious,  ///< the end of the piece before
  kMergedWithNext,      ///< the beginning of the piece after
  kContiguous,          ///< neighbouring delimiters are one piece
};

/// From the name in tokenizer.json: "Removed", "Isolated", ...
SplitBehavior read_split_behavior(const Json& json);

/// Makes pieces of the spans of a text that arrive in order and cover it.
class Splitter {
 public:
  /// `emit(begin, end)` gets the pieces, none of them empty.
  Splitter(SplitBehavior behavior, std::function<void(size_t, size_t)> emit)
      : behavior_(behavior), emit_(std::move(emit)) {}

  /// The next span [begin, end) of the text.
  void add(size_t begin, size_t end, bool is_delimiter);
  /// Emits what still waits; after the last span.
  void finish();

 private:
  [[nodiscard]] bool joins(bool is_delimiter) const;

  SplitBehavior behavior_;
  std::function<void(size_t, size_t)> emit_;
  size_t begin_ = 0, end_ = 0;  // the span that waits for the next one; empty: none
  bool is_delimiter_ = false;   // of the last span added
};

}  // namespace cleave
