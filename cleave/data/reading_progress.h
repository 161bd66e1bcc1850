#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/byte_progress.h"

namespace cleave::inline data {

/// Shows how far data files are read, once that takes more than a second, and ends the reading on a
/// signal.
class ReadingProgress {
 public:
  /// `files`: all that are read, in order. Under a launcher no line is live. Throws Error(kIo) if a
  /// file cannot be opened.
  ReadingProgress(const std::vector<std::string>& files, ByteProgress::Options options);

  /// `done`: bytes of the current file. Throws Stopped.
  void note(uint64_t done);
  /// The current file is read; the next one follows.
  void end_file();

 private:
  ByteProgress progress_;
  std::vector<uint64_t> sizes_;  // of the files
  uint64_t total_ = 0;
  size_t file_ = 0;
  uint64_t before_ = 0;  // bytes of the files before the current one
};

/// The progress of files that every process of a job reads by itself; one process shows it. Without
/// a `cache_folder` it does so only on a terminal, because stdout is for the results of the
/// command.
ReadingProgress common_progress(const std::vector<std::string>& files, std::string unit,
                                const std::string& cache_folder);

}  // namespace cleave::inline data
