#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/file/file.h"

namespace cleave {

/// A file inside a zip file, stored as it is: [begin, end) of the zip file.
struct ZipEntry {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Entries of a zip file in the order of their bytes, as its central directory says. Throws
/// Error(kFormat) for what torch never writes: compressed or encrypted entries, entries that
/// overlap, two of one name, a comment or bytes after the end, several disks, a directory that
/// contradicts the entries' own headers. Checksums are not compared: programs may leave them out.
/// Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3 (zip64).
std::vector<ZipEntry> read_zip(const File& file);

/// A zip file of stored entries whose sizes are known before their bytes are. Data begins at
/// multiples of 64 bytes; sizes and places above 4 GiB are written in zip64's form.
class ZipPlan {
 public:
  /// A file inside the zip file that is to be written.
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
  std::vector<uint64_t> headers_;  ///< where each entry's own header begins
};

}  // namespace cleave
