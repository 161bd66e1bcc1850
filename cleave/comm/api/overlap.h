#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cleave/comm/shm/collectives.h"

namespace cleave::inline comm {

// `in` and `out` of a collective may overlap. Both classes take how many bytes are read and written
// at the same time, and copy nothing if these do not overlap.

/// The original contents of `in` while `out` is written: a copy if the two overlap.
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

/// Where a result is written: `out` itself or, if `out` overlaps memory that is still read, a
/// separate buffer that finish() copies to `out`.
class Result {
 public:
  Result(const Buffers& buffers, int64_t in_bytes, int64_t out_bytes) : out_(buffers.out) {
    if (KeptInput::overlap(buffers, in_bytes, out_bytes)) {
      separate_.resize(static_cast<size_t>(out_bytes));
    }
  }
  /// The buffer to write, as large as `out`.
  [[nodiscard]] std::byte* data() { return separate_.empty() ? out_ : separate_.data(); }
  /// Copies the result to `out`, once nothing reads the old contents any more.
  void finish() { std::copy(separate_.begin(), separate_.end(), out_); }

 private:
  std::byte* out_;
  std::vector<std::byte> separate_;
};

}  // namespace cleave::inline comm
