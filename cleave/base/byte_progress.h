#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cleave/base/clock.h"
#include "cleave/base/progress.h"

namespace cleave::inline base {

/// Receives how many bytes of a total are done.
using OnBytes = std::function<void(uint64_t done, uint64_t total)>;

/// Counts the bytes of some work and reports them.
class ByteCount {
 public:
  /// `on_bytes` may be empty.
  explicit ByteCount(OnBytes on_bytes) : on_bytes_(std::move(on_bytes)) {}

  /// More bytes to do, perhaps estimated; before the first add().
  void expect(uint64_t bytes) { total_ += bytes; }
  void add(uint64_t done) {
    done_ += done;
    if (on_bytes_) on_bytes_(std::min(done_, total_), total_);
  }

 private:
  OnBytes on_bytes_;
  uint64_t done_ = 0, total_ = 0;
};

/// Shows how many MiB of long work are done, once it takes more than a second.
class ByteProgress {
 public:
  struct Options {
    std::string unit;  ///< what is counted: "tokenized MiB"
    bool is_shown = true;
    bool may_be_live = true;                      ///< as in ProgressOptions
    double line_every_s = 10;                     ///< if stdout is not a terminal
    std::function<double()> clock = monotonic_s;  ///< seconds
  };

  explicit ByteProgress(Options options);

  /// Reports that `done` of `total` bytes are finished.
  void note(uint64_t done, uint64_t total);

 private:
  Options options_;
  double start_s_;
  std::unique_ptr<Progress> progress_;
};

/// Shows what it receives as ByteProgress does, but only on a terminal: for commands whose output
/// is their result. Its last copy removes the line.
OnBytes terminal_progress(std::string unit);

}  // namespace cleave::inline base
