#include "cleave/data/reading_progress.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "cleave/base/stop.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/bootstrap/first_rank.h"
#include "cleave/file/file.h"

namespace cleave::inline data {

ReadingProgress::ReadingProgress(Options options)
    : progress_({.unit = std::move(options.unit),
                 .is_shown = options.is_shown,
                 .may_be_live = options.is_shown && !read_environment(),
                 .line_every_s = options.line_every_s,
                 .clock = std::move(options.clock)}) {
  for (const std::string& file : options.files) sizes_.push_back(File::open_read(file).size());
  total_ = std::accumulate(sizes_.begin(), sizes_.end(), uint64_t{0});
}

void ReadingProgress::note(uint64_t done) {
  if (const int signal = StopSignal::pending(); signal != 0) throw Stopped{signal};
  progress_.note(before_ + done, total_);
}

void ReadingProgress::end_file() {
  before_ += sizes_.at(file_++);
}

ReadingProgress common_progress(std::vector<std::string> files, std::string unit,
                                const std::string& cache_folder) {
  return ReadingProgress({.files = std::move(files),
                          .unit = std::move(unit),
                          .is_shown = is_first_rank(),
                          .line_every_s = cache_folder.empty() ? INFINITY : 10});
}

}  // namespace cleave::inline data
