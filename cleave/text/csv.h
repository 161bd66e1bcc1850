#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/file/file.h"

namespace cleave::inline text {

/// Bounds on an untrusted CSV file.
struct CsvLimits {
  uint64_t max_record_bytes = uint64_t{64} << 20;  ///< in the file, with quotes
  size_t max_fields = 1024;                        ///< of a record
};

/// Reads a CSV file record by record; memory holds one record. RFC 4180 with LF or CR LF, checked
/// UTF-8 and bounded sizes. The first record is the header; all records have the same number of
/// fields. A quoted field may contain commas, doubled quotes and line breaks, which stay unchanged.
/// Blank lines and a byte order mark are skipped.
///
/// Errors are Error(kFormat) that begin with FILE:LINE:COLUMN; lines and columns (in bytes) count
/// from 1. A file in UTF-16 or gzip is refused as a whole. While a StopSignal exists, a signal
/// throws Stopped between two blocks of a file.
class CsvReader {
 public:
  /// Reads the header. Throws Error(kIo) as File::open_read does, Error(kFormat) if it is missing.
  explicit CsvReader(const std::string& path, const CsvLimits& limits = {});
  /// Reads a string, which must outlive the reader; `name` replaces the path in messages.
  CsvReader(std::string_view text, std::string name, const CsvLimits& limits = {});
  CsvReader(const CsvReader&) = delete;
  CsvReader& operator=(const CsvReader&) = delete;

  [[nodiscard]] const std::vector<std::string>& header() const { return header_; }
  /// Index of the column with the first of these names that the header has. Throws Error(kFormat)
  /// with the wanted names and the header.
  [[nodiscard]] size_t column(std::span<const std::string_view> names) const;

  /// The fields of the next record; nullopt at the end.
  std::optional<std::vector<std::string>> next();
  /// "FILE:LINE" where the record that next() returned begins.
  [[nodiscard]] std::string place() const;

 private:
  /// Fills the buffer and returns the number of bytes; 0 at the end.
  using Source = std::function<size_t(std::span<char>)>;
  struct Position {
    uint64_t line = 1, column = 1;
  };

  void read_header();
  int peek();
  int take();
  void count_bytes(size_t count);
  void take_until(const char* end, std::string& out);
  bool take_line_end();
  std::optional<std::vector<std::string>> record();
  std::string field();
  void quoted(const Position& begin, std::string& out);
  void plain(std::string& out);
  [[noreturn]] void fail(const Position& spot, std::string_view message) const;

  std::string name_;
  CsvLimits limits_;
  Source source_;
  std::vector<char> buffer_;
  size_t at_ = 0, end_ = 0;  // range of the unread bytes in the buffer
  Position here_, begin_;
  uint64_t record_bytes_ = 0;
  std::vector<std::string> header_;
};

}  // namespace cleave::inline text
