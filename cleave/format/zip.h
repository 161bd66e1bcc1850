#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/file/file.h"

namespace cleave::inline format {

/// A stored (uncompressed) file inside a zip file: bytes [begin, end) of the zip file.
struct ZipEntry {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// The entries of a zip file, from its central directory, in the order of their bytes. Throws
/// Error(kFormat) for anything that torch never writes: compressed, encrypted or overlapping
/// entries, duplicate names, a comment or bytes after the end, several disks, a directory that
/// contradicts the local headers. Checksums are not compared, because programs may omit them.
/// Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3 (zip64).
std::vector<ZipEntry> read_zip(const File& file);

/// The layout of a zip file of stored entries, computed from their sizes. Data begins at multiples
/// of 64 bytes; sizes and offsets above 4 GiB use zip64.
class ZipPlan {
 public:
  /// An entry to be written.
  struct Item {
    std::string name;
    uint64_t bytes = 0;
  };
  /// `items` in order, names unique, each below 65,000 bytes.
  explicit ZipPlan(const std::vector<Item>& items);

  [[nodiscard]] const std::vector<ZipEntry>& entries() const { return entries_; }
  [[nodiscard]] uint64_t total_bytes() const;  ///< of the whole file
  /// Writes everything but the entries' bytes; `checksums` are their CRC-32. Throws Error(kIo).
  void write_headers(File& file, const std::vector<uint32_t>& checksums) const;

 private:
  [[nodiscard]] std::string local_header(size_t index, uint32_t checksum) const;
  [[nodiscard]] std::string directory(const std::vector<uint32_t>& checksums) const;

  std::vector<ZipEntry> entries_;
  std::vector<uint64_t> headers_;  ///< offset of each entry's local header
};

}  // namespace cleave::inline format
