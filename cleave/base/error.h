#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cleave/base/str.h"

namespace cleave::inline base {

/// The kind of a failure. The value is also the program's exit code.
enum class Code : uint8_t {
  kUsage = 2,     ///< invalid call or command line
  kShape = 3,     ///< sizes, layouts or settings that do not fit together
  kFormat = 4,    ///< invalid bytes in a file
  kIo = 5,        ///< the operating system refused a file operation
  kPeer = 6,      ///< another rank is gone
  kTimeout = 7,   ///< a wait exceeded its limit
  kDesync = 8,    ///< ranks called different collectives
  kNumerics = 9,  ///< NaN or infinity where a finite number is needed
  kMemory = 10,   ///< not enough memory
  kBug = 70,      ///< an internal error of Cleave
};

/// Short lower-case name of a code: "usage", "shape", ...
std::string_view name(Code code);

/// The only exception type of the library: a code and one sentence in lower case without a full
/// stop: "subject, value, what would be right; the remedy".
class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& text) : std::runtime_error(text), code_(code) {}
  [[nodiscard]] Code code() const { return code_; }

 private:
  Code code_;
};

namespace internal {
[[noreturn]] void throw_bug(const char* file, int line, const std::string& text);
}  // namespace internal

}  // namespace cleave::inline base

/// Throws Error(code, str(...)) unless `condition` holds. For mistakes of users and invalid files.
#define CLEAVE_CHECK(condition, code, ...)                       \
  do {                                                           \
    if (!(condition)) [[unlikely]] {                             \
      throw ::cleave::Error((code), ::cleave::str(__VA_ARGS__)); \
    }                                                            \
  } while (false)

/// Throws Error(kBug): an internal error that no user can cause.
#define CLEAVE_BUG(...) \
  ::cleave::internal::throw_bug(__FILE__, __LINE__, ::cleave::str(__VA_ARGS__))
