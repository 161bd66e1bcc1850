#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "cleave/file/file.h"

namespace cleave {

/// Token ids in order, 2 bytes each where the vocabulary allows it, else 4; in memory, or in a file
/// that one program wrote and many read. The file is read, never mapped: one that is cut meanwhile
/// is an Error(kFormat), no signal.
///
/// File: magic, version, bytes per id, key, number of ids, largest id, checksum of the ids,
/// checksum of what stands before; then the ids. Little-endian.
class Tokens {
 public:
  /// None yet, for ids below `vocab_size`.
  explicit Tokens(int64_t vocab_size);

  /// The ids in a file that write() made with this key; nothing when there is no such file, or it
  /// is damaged or of other content. Throws Error(kIo) when it cannot be read.
  static std::optional<Tokens> open(const std::filesystem::path& path, uint64_t key);
  /// Puts the ids under `path`, whole or not at all. One writer at a time. Throws Error(kIo).
  void write(const std::filesystem::path& path, uint64_t key) const;

  /// Only for ids in memory. Throws Error(kBug) for one outside the vocabulary.
  void append(std::span<const int64_t> ids);

  [[nodiscard]] int64_t size() const;
  [[nodiscard]] int64_t max_id() const { return max_id_; }  ///< -1 when there is none
  [[nodiscard]] int64_t back() const;                       ///< the last of one or more
  /// Copies the ids first, first + 1, ... into `out`. Throws Error(kFormat) when the file was cut.
  void copy(int64_t first, std::span<int64_t> out) const;
  /// XXH3 of the stored bytes.
  [[nodiscard]] uint64_t checksum() const;

 private:
  int64_t vocab_size_;
  uint64_t item_bytes_;
  int64_t max_id_ = -1;
  std::vector<std::byte> memory_;
  std::optional<File> file_;
  uint64_t file_bytes_ = 0, file_checksum_ = 0;  // of the ids in file_
};

}  // namespace cleave
