#include "cleave/data/reading_progress.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "cleave/base/stop.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/bootstrap/first_rank.h"
#include "cleave/file/file.h"

namespace cleave::inline data {

namespace {

ByteProgress::Options plain_under_launcher(ByteProgress::Options options) {
  options.may_be_live = options.may_be_live && !read_environment();
  return options;
}

}  // namespace

ReadingProgress::ReadingProgress(const std::vector<std::string>& files,
                                 ByteProgress::Options options)
    : progress_(plain_under_launcher(std::move(options))) {
  for (const std::string& file : files) sizes_.push_back(File::open_read(file).size());
  total_ = std::accumulate(sizes_.begin(), sizes_.end(), uint64_t{0});
}

void ReadingProgress::note(uint64_t done) {
  if (const int signal = StopSignal::pending(); signal != 0) throw Stopped{signal};
  progress_.note(before_ + done, total_);
}

void ReadingProgress::end_file() {
  before_ += sizes_.at(file_++);
}

ReadingProgress common_progress(const std::vector<std::string>& files, std::string unit,
                                const std::string& cache_folder) {
  return {files,
          {.unit = std::move(unit),
           .is_shown = is_first_rank(),
           .line_every_s = cache_folder.empty() ? INFINITY : 10}};
}

}  // namespace cleave::inline data
