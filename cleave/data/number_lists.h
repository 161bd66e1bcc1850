#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "cleave/base/hash.h"
#include "cleave/file/file.h"

namespace cleave::inline data {

/// An array of bytes that grows at its end. With a folder, what exceeds some MiB is in a file there
/// that has no name, so that nothing is left of it when the process ends.
class SpilledBytes {
 public:
  /// `folder`: made when it is needed; empty: all bytes stay in memory.
  explicit SpilledBytes(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Throws Error(kIo), also on a full disk.
  void append(std::span<const std::byte> bytes);
  /// Copies the bytes from `at` on into `out`. Any number of threads may read.
  void read(uint64_t at, std::span<std::byte> out) const;
  [[nodiscard]] uint64_t size() const { return file_bytes_ + memory_.size(); }
  void add_to(Hasher& hasher) const;

 private:
  void spill();

  std::filesystem::path folder_;
  File file_;
  uint64_t file_bytes_ = 0;
  std::vector<std::byte> memory_;  // the bytes after those of the file
};

/// Lists of numbers in order, of any total size.
class NumberLists {
 public:
  /// `folder` as in SpilledBytes.
  explicit NumberLists(const std::filesystem::path& folder);

  /// Throws Error(kIo).
  void append(std::span<const int32_t> list);
  [[nodiscard]] int64_t size() const;  ///< lists
  [[nodiscard]] std::vector<int64_t> list(int64_t index) const;

  /// Adds the numbers of all lists.
  void add_numbers_to(Hasher& hasher) const { numbers_.add_to(hasher); }
  /// Adds the place of each list's first number, and the number of numbers, as int64.
  void add_starts_to(Hasher& hasher) const { starts_.add_to(hasher); }

 private:
  SpilledBytes numbers_, starts_;
};

}  // namespace cleave::inline data
