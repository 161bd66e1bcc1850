#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/base/error.h"

namespace cleave {

/// Bounds on an untrusted JSON text. Its values take what is said here beside their characters, and
/// as much again while the arrays that hold them grow.
struct JsonLimits {
  uint64_t max_bytes = uint64_t{256} << 20;
  int max_depth = 128;
  size_t max_values = size_t{1} << 22;  ///< numbers, strings, ...; each up to 104 bytes
};

/// A parsed, immutable JSON value. The one reader of JSON bytes: strict RFC 8259, UTF-8 checked,
/// duplicate keys refused, depth and size bounded. Every value knows its byte offset, and every
/// accessor's error names file, key, value and byte ("config.json: \"hidden_size\" is 768.5;
/// expected an integer in [1, 1048576] (byte 214)").
class Json {
 public:
  static constexpr double kAnyNumber = std::numeric_limits<double>::max();
  enum class Type : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };

  /// Throws Error(kFormat) naming `source` (a file name) and the byte offset.
  static Json parse(std::string_view text, std::string source, const JsonLimits& limits = {});
  /// Reads a file. Throws Error(kIo) when it cannot be read, Error(kFormat) as parse does.
  static Json parse_file(const std::string& path, const JsonLimits& limits = {});

  [[nodiscard]] Type type() const;
  /// Whether the value has this type.
  [[nodiscard]] bool is(Type type) const { return this->type() == type; }
  [[nodiscard]] uint64_t offset() const;  ///< byte where the value starts

  /// The value; Error(kFormat) when it has another type or is outside the range.
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] int64_t as_int(int64_t low = INT64_MIN, int64_t high = INT64_MAX) const;
  [[nodiscard]] double as_number(double low = -kAnyNumber, double high = kAnyNumber) const;
  [[nodiscard]] const std::string& as_string() const;
  /// True for a number without fraction or exponent that fits int64.
  [[nodiscard]] bool is_int() const;

  /// Elements of an array, or of an object in file order.
  [[nodiscard]] size_t size() const;
  [[nodiscard]] Json at(size_t index) const;
  [[nodiscard]] const std::string& key(size_t index) const;

  /// Member of an object, also when it is null. Throws Error(kFormat) when it is missing.
  [[nodiscard]] Json at(std::string_view key) const;
  [[nodiscard]] bool has(std::string_view key) const;  ///< present and not null

  /// Member with a default for "missing or null".
  [[nodiscard]] int64_t int_or(std::string_view key, int64_t fallback, int64_t low = INT64_MIN,
                               int64_t high = INT64_MAX) const;
  [[nodiscard]] double number_or(std::string_view key, double fallback, double low = -kAnyNumber,
                                 double high = kAnyNumber) const;
  [[nodiscard]] bool bool_or(std::string_view key, bool fallback) const;
  [[nodiscard]] std::string string_or(std::string_view key, std::string_view fallback) const;

  /// Throws Error(kFormat) about this value: "SOURCE: \"key.path\" is VALUE; MESSAGE (byte N)".
  [[noreturn]] void fail(std::string_view message) const;

  /// The value as compact JSON text again, numbers as written in the file.
  [[nodiscard]] std::string dump() const;

 private:
  struct Document;
  Json(std::shared_ptr<const Document> document, uint32_t node)
      : document_(std::move(document)), node_(node) {}
  std::shared_ptr<const Document> document_;
  uint32_t node_ = 0;
};

}  // namespace cleave
