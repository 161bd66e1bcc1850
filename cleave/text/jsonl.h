#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cleave/file/file.h"
#include "cleave/text/json.h"

namespace cleave {

/// The lines of a file, one after the other: memory is at most twice the longest line and a block.
class LineReader {
 public:
  /// Throws Error(kIo) as File::open_read does. Lines longer than `max_bytes` are refused.
  explicit LineReader(const std::string& path, uint64_t max_bytes = JsonLimits{}.max_bytes);

  /// The next line without its LF or CR LF, valid until the next call; nothing after the last. The
  /// last line needs no end. A byte order mark before the first is dropped. Throws Error(kFormat)
  /// naming file and line when it is too long.
  std::optional<std::string_view> next();

  /// Number of the line that next() gave, from 1; 0 before the first.
  [[nodiscard]] uint64_t line() const { return line_; }
  /// "FILE:LINE" of it.
  [[nodiscard]] std::string place() const;

 private:
  bool read_more();
  [[nodiscard]] std::string next_place() const;

  File file_;
  uint64_t max_bytes_, size_;
  uint64_t read_ = 0;  // bytes of the file that are in the buffer or consumed
  uint64_t line_ = 0;
  std::string buffer_;
  size_t begin_ = 0;  // of the next line in the buffer
};

/// The values of a JSONL file: one JSON text a line; blank lines are skipped.
class JsonLines {
 public:
  /// Throws Error(kIo) as File::open_read does.
  explicit JsonLines(const std::string& path, const JsonLimits& limits = {});

  /// The value of the next line; nothing at the end. Its errors, and those of the value, name
  /// FILE:LINE and the byte in the line.
  std::optional<Json> next();

  /// Number of the line of the value that next() gave, from 1, and "FILE:LINE" of it.
  [[nodiscard]] uint64_t line() const { return lines_.line(); }
  [[nodiscard]] std::string place() const { return lines_.place(); }

 private:
  LineReader lines_;
  JsonLimits limits_;
};

}  // namespace cleave
