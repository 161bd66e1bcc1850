#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cleave/file/file.h"
#include "cleave/text/json.h"

namespace cleave::inline text {

/// Reads a text file line by line. Memory is at most twice the longest line plus one block.
class LineReader {
 public:
  /// Throws Error(kIo) as File::open_read does. Refuses lines longer than `max_bytes`.
  explicit LineReader(const std::string& path, uint64_t max_bytes = JsonLimits{}.max_bytes);

  /// The next line without its LF or CR LF, valid until the next call; nullopt after the last. The
  /// last line needs no line end. A byte order mark before the first is dropped. Throws
  /// Error(kFormat) naming file and line if the line is too long, and for a file in UTF-16 or
  /// compressed by gzip.
  std::optional<std::string_view> next();

  /// Number of the line that next() returned, from 1; 0 before the first.
  [[nodiscard]] uint64_t line() const { return line_; }
  /// Bytes of the file that were read so far, by blocks.
  [[nodiscard]] uint64_t bytes_read() const { return read_; }
  /// "FILE:LINE" of that line.
  [[nodiscard]] std::string place() const;

 private:
  bool read_more();
  [[nodiscard]] std::string next_place() const;

  File file_;
  uint64_t max_bytes_, size_;
  uint64_t read_ = 0;  // bytes read from the file so far
  uint64_t line_ = 0;
  std::string buffer_;
  size_t begin_ = 0;  // start of the next line in the buffer
};

/// The first byte of a file that is not blank, after a byte order mark; 0 if there is none. Shows
/// without parsing that a text is not JSON.
char first_byte(const std::string& path);

/// Reads a JSONL file: one JSON value per line. Blank lines are skipped.
class JsonLines {
 public:
  static constexpr std::string_view kObjects = "JSONL has one JSON object per line";

  /// `expected` says what the lines are, for the error about a line that is no JSON. Throws
  /// Error(kIo) as File::open_read does.
  explicit JsonLines(const std::string& path, std::string_view expected = kObjects);

  /// The value of the next line; nullopt at the end. Errors, also those of the value's accessors,
  /// name FILE:LINE and the byte in the line.
  std::optional<Json> next();

  /// Bytes of the file that were read so far, by blocks.
  [[nodiscard]] uint64_t bytes_read() const { return lines_.bytes_read(); }
  /// Number of the line of the value that next() returned, from 1, and its "FILE:LINE".
  [[nodiscard]] uint64_t line() const { return lines_.line(); }
  [[nodiscard]] std::string place() const { return lines_.place(); }

 private:
  LineReader lines_;
  std::string expected_;
};

}  // namespace cleave::inline text
