#pragma once
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/chat/jinja/value.h"

namespace cleave::inline chat::jinja {

struct Syntax;

/// Bounds on what an untrusted template may use, and its clock.
struct RenderOptions {
  uint64_t max_steps = uint64_t{1} << 24;  ///< operations
  uint64_t max_bytes = uint64_t{1} << 28;  ///< of all text that it makes, printed or not
  std::time_t now = 0;                     ///< for strftime_now(), in local time
};

/// A part of a text: bytes begin, ..., end - 1.
struct ByteSpan {
  size_t begin = 0, end = 0;
};

/// What a template printed.
struct Rendered {
  std::string text;
  std::vector<ByteSpan> generated;  ///< what its {% generation %} blocks printed, in order
};

/// A parsed template in the part of Jinja that chat templates use, with the settings of
/// transformers: trim_blocks, lstrip_blocks, break and continue, {% generation %}, tojson without
/// HTML escapes, raise_exception(), strftime_now(). Values have Python's semantics; integers are of
/// 64 bits. Templates cannot change values, except namespaces. Immutable; all threads may use one.
class Template {
 public:
  /// Parses a template. Throws Error(kFormat) that names `source` and the line.
  Template(std::string_view text, std::string source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  Template(const Template&) = delete;
  Template& operator=(const Template&) = delete;

  /// Prints the template with these variables. Throws Error(kFormat) that names the source and the
  /// line: an operation that the values do not allow, raise_exception(), or a limit of `options`.
  [[nodiscard]] Rendered render(const std::vector<std::pair<std::string, Value>>& variables,
                                const RenderOptions& options) const;

  /// Whether it marks what the assistant wrote by {% generation %} blocks.
  [[nodiscard]] bool has_generation() const;
  /// Hash of its text.
  [[nodiscard]] uint64_t fingerprint() const { return fingerprint_; }

 private:
  std::string source_;
  uint64_t fingerprint_;
  std::unique_ptr<const Syntax> syntax_;
};

}  // namespace cleave::inline chat::jinja
