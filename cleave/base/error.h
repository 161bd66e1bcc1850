#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cleave/base/str.h"

namespace cleave {

/// What kind of failure it was. The value is also the program's exit code.
enum class Code : uint8_t {
  kUsage = 2,     ///< a call or a command line that cannot mean anything
  kShape = 3,     ///< sizes, layouts or a configuration that do not fit together
  kFormat = 4,    ///< bytes of a file that are not what the format says
  kIo = 5,        ///< the operating system refused a file operation
  kPeer = 6,      ///< another rank is gone
  kTimeout = 7,   ///< a wait was longer than the limit
  kDesync = 8,    ///< ranks called different collectives
  kNumerics = 9,  ///< NaN or infinity where a number is needed
  kMemory = 10,   ///< not enough memory
  kBug = 70,      ///< a contradiction inside Cleave itself
};

/// Short lower-case name of a code: "usage", "shape", ...
std::string_view name(Code code);

/// The one exception type of the library: a code and one sentence (lower case, no full stop:
/// subject, value, what would be right; the remedy).
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

}  // namespace cleave

/// Throws Error(code, text of `...`) unless `condition` holds. For what a user or a file can do
/// wrong.
#define CLEAVE_CHECK(condition, code, ...)                       \
  do {                                                           \
    if (!(condition)) [[unlikely]] {                             \
      throw ::cleave::Error((code), ::cleave::str(__VA_ARGS__)); \
    }                                                            \
  } while (false)

/// Throws Error(kBug): a contradiction that no user can cause.
#define CLEAVE_BUG(...) \
  ::cleave::internal::throw_bug(__FILE__, __LINE__, ::cleave::str(__VA_ARGS__))
