#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cleave/comm/shm/collectives.h"

namespace cleave {

// `in` and `out` of a collective may lie over each other. Both classes take how much of each is
// read and written at the same time; where that does not overlap they cost nothing.

/// `in` as it was, while `out` is written.
class KeptInput {
 public:
  KeptInput(const Buffers& buffers, int64_t in_bytes, int64_t out_bytes) : in_(buffers.in) {
    if (overlap(buffers, in_bytes, out_bytes)) kept_.assign(in_, in_ + in_bytes);
  }
  [[nodiscard]] const std::byte* data() const { return kept_.empty() ? in_ : kept_.data(); }

  /// Whether these bytes of `in` and `out` overlap.
  static bool overlap(const Buffers& buffers, int64_t in_bytes, int64_t out_bytes) {
    return buffers.in < buffers.out + out_bytes && buffers.out < buffers.in + in_bytes;
  }

 private:
  const std::byte* in_;
  std::vector<std::byte> kept_;
};

/// Where a result is written: `out` itself, or, where it lies over memory that is still read,
/// memory of its own that finish() copies to `out`.
class Result {
 public:
  Result(const Buffers& buffers, int64_t in_bytes, int64_t out_bytes) : out_(buffers.out) {
    if (KeptInput::overlap(buffers, in_bytes, out_bytes)) {
      apart_.resize(static_cast<size_t>(out_bytes));
    }
  }
  /// Bytes to write, as many as `out` has.
  [[nodiscard]] std::byte* data() { return apart_.empty() ? out_ : apart_.data(); }
  /// Brings the result to `out`, of which nothing is read any more.
  void finish() { std::copy(apart_.begin(), apart_.end(), out_); }

 private:
  std::byte* out_;
  std::vector<std::byte> apart_;
};

}  // namespace cleave
