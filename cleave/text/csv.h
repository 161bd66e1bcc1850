#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/file/file.h"

namespace cleave {

/// Bounds on an untrusted CSV file.
struct CsvLimits {
  uint64_t max_record_bytes = uint64_t{64} << 20;  ///< as they stand in the file
  size_t max_fields = 1024;                        ///< of a record
};

/// The records of a CSV file, one after the other, in memory for one record. The one reader of CSV
/// bytes: RFC 4180 with LF or CR LF, UTF-8 checked, sizes bounded. The first record is the header;
/// every other one has as many fields. In quotes a field may hold commas, doubled quotes and line
/// breaks, kept as they are. Blank lines and a byte order mark are skipped.
///
/// Errors are Error(kFormat) that begin with FILE:LINE:COLUMN, counted from 1 in bytes.
class CsvReader {
 public:
  /// Reads the header. Throws Error(kIo) as File::open_read does, Error(kFormat) when there is
  /// none.
  explicit CsvReader(const std::string& path, const CsvLimits& limits = {});
  /// The same for a text in memory, which must live on; `name` stands for the file in messages.
  CsvReader(std::string_view text, std::string name, const CsvLimits& limits = {});
  CsvReader(const CsvReader&) = delete;
  CsvReader& operator=(const CsvReader&) = delete;

  [[nodiscard]] const std::vector<std::string>& header() const { return header_; }
  /// Number of the column with one of these names, the first that is there. Throws Error(kFormat)
  /// with the names that were looked for and the header's.
  [[nodiscard]] size_t column(std::span<const std::string_view> names) const;

  /// The fields of the next record; nothing at the end.
  std::optional<std::vector<std::string>> next();
  /// "FILE:LINE" where the record that next() gave begins.
  [[nodiscard]] std::string place() const;

 private:
  /// Fills a piece of the buffer; the number of bytes, 0 at the end.
  using Source = std::function<size_t(std::span<char>)>;
  struct Spot {
    uint64_t line = 1, column = 1;
  };

  void read_header();
  int peek();
  int take();
  void take_to(std::string& out);
  bool take_line_end();
  std::optional<std::vector<std::string>> record();
  std::string field();
  void quoted(const Spot& begin, std::string& out);
  void plain(std::string& out);
  [[noreturn]] void fail(const Spot& spot, std::string_view message) const;

  std::string name_;
  CsvLimits limits_;
  Source source_;
  std::vector<char> buffer_;
  size_t at_ = 0, end_ = 0;  // of what is not yet taken in the buffer
  Spot here_, begin_;
  uint64_t record_bytes_ = 0;
  std::vector<std::string> header_;
};

}  // namespace cleave
