#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "cleave/file/file.h"
#include "cleave/report/metrics.h"

namespace cleave::inline report {

/// The folder of a run that TensorBoard reads.
inline constexpr std::string_view kEventFolderName = "tensorboard";

/// The CRC-32C (Castagnoli) of the bytes.
uint32_t crc32c(std::span<const std::byte> bytes);

/// Writes the metrics of steps into an event file, which TensorBoard shows. A step is in the file
/// when add() returns.
class EventFile {
 public:
  /// Creates a new event file in `folder`, and the folder too. In earlier files of the folder,
  /// TensorBoard then ignores the steps from `first_step` on, because a resumed run repeats them.
  /// Throws Error(kIo).
  EventFile(const std::filesystem::path& folder, int64_t first_step);

  /// Adds the values that are known, as "train/loss", ..., "eval/loss". Throws Error(kIo).
  void add(const StepMetrics& metrics);

 private:
  void append(std::string_view event);

  File file_;
  uint64_t size_ = 0;
};

}  // namespace cleave::inline report
