#include "cleave/base/byte_progress.h"

#include <cmath>
#include <utility>

namespace cleave::inline base {
namespace {

constexpr double kLongS = 1;  // work that takes less is not shown

int64_t mebibytes(uint64_t bytes) {
  return static_cast<int64_t>(bytes >> 20);
}

}  // namespace

ByteProgress::ByteProgress(Options options)
    : options_(std::move(options)), start_s_(options_.clock()) {}

void ByteProgress::note(uint64_t done, uint64_t total) {
  if (!options_.is_shown || (!progress_ && options_.clock() - start_s_ < kLongS)) return;
  if (!progress_) {
    // Its time left counts from here.
    progress_ = std::make_unique<Progress>(ProgressOptions{.total = mebibytes(total) + 1,
                                                           .done = mebibytes(done),
                                                           .unit = options_.unit,
                                                           .may_be_live = options_.may_be_live,
                                                           .line_every_s = options_.line_every_s,
                                                           .clock = options_.clock});
  }
  progress_->update(mebibytes(done));
}

OnBytes terminal_progress(std::string unit) {
  const auto progress = std::make_shared<ByteProgress>(
      ByteProgress::Options{.unit = std::move(unit), .line_every_s = INFINITY});
  return [progress](uint64_t done, uint64_t total) { progress->note(done, total); };
}

}  // namespace cleave::inline base
