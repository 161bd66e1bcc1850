#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/base/error.h"

namespace cleave::inline text {

/// Bounds on an untrusted JSON text.
struct JsonLimits {
  uint64_t max_bytes = uint64_t{256} << 20;
  int max_depth = 128;
  /// Numbers, strings, ...: each takes up to 104 bytes of memory in addition to its characters, and
  /// twice that while arrays grow.
  size_t max_values = size_t{1} << 22;
};

/// A parsed, immutable JSON value. Strict RFC 8259 with checked UTF-8, no duplicate keys, bounded
/// depth and size. Every value knows its byte offset, and every accessor's error names file, key,
/// value and byte ("config.json: \"hidden_size\" is 768.5; expected an integer in [1, 1048576]
/// (byte 214)").
class Json {
 public:
  static constexpr double kAnyNumber = std::numeric_limits<double>::max();
  enum class Type : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };

  /// Throws Error(kFormat) naming `source` (a file name) and the byte offset.
  static Json parse(std::string_view text, std::string source, const JsonLimits& limits = {});
  /// Parses a file. Throws Error(kIo) if it cannot be read, Error(kFormat) as parse() does.
  static Json parse_file(const std::string& path, const JsonLimits& limits = {});

  [[nodiscard]] Type type() const;
  /// Whether the value has this type.
  [[nodiscard]] bool is(Type type) const { return this->type() == type; }
  [[nodiscard]] uint64_t offset() const;  ///< byte offset where the value begins

  /// The value. Throws Error(kFormat) if it has another type or is outside the range.
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] int64_t as_int(int64_t low = INT64_MIN, int64_t high = INT64_MAX) const;
  [[nodiscard]] double as_number(double low = -kAnyNumber, double high = kAnyNumber) const;
  [[nodiscard]] const std::string& as_string() const;
  /// Whether the value is a number without fraction or exponent that fits in int64.
  [[nodiscard]] bool is_int() const;

  /// Elements of an array, or members of an object in file order.
  [[nodiscard]] size_t size() const;
  [[nodiscard]] Json at(size_t index) const;
  [[nodiscard]] const std::string& key(size_t index) const;

  /// Member of an object, which may be null. Throws Error(kFormat) if it is missing.
  [[nodiscard]] Json at(std::string_view key) const;
  [[nodiscard]] bool has(std::string_view key) const;  ///< present and not null

  /// Member of an object; `fallback` if it is missing or null.
  [[nodiscard]] int64_t int_or(std::string_view key, int64_t fallback, int64_t low = INT64_MIN,
                               int64_t high = INT64_MAX) const;
  [[nodiscard]] double number_or(std::string_view key, double fallback, double low = -kAnyNumber,
                                 double high = kAnyNumber) const;
  [[nodiscard]] bool bool_or(std::string_view key, bool fallback) const;
  [[nodiscard]] std::string string_or(std::string_view key, std::string_view fallback) const;

  /// Throws Error(kFormat) about this value: "SOURCE: \"key.path\" is VALUE; MESSAGE (byte N)".
  [[noreturn]] void fail(std::string_view message) const;

  /// The value as compact JSON; numbers stay as written in the file.
  [[nodiscard]] std::string dump() const;

 private:
  struct Document;
  Json(std::shared_ptr<const Document> document, uint32_t node)
      : document_(std::move(document)), node_(node) {}
  std::shared_ptr<const Document> document_;
  uint32_t node_ = 0;
};

/// What `parse` returns. The message of its Error(kFormat) gets `expected` at its end: what the
/// text should be, for texts that may be of another kind.
Json parsed_as(std::string_view expected, const std::function<Json()>& parse);

}  // namespace cleave::inline text
