#include "cleave/base/error.h"

namespace cleave::inline base {

std::string_view name(Code code) {
  switch (code) {
    case Code::kUsage:
      return "usage";
    case Code::kShape:
      return "shape";
    case Code::kFormat:
      return "format";
    case Code::kIo:
      return "io";
    case Code::kPeer:
      return "peer";
    case Code::kTimeout:
      return "timeout";
    case Code::kDesync:
      return "desync";
    case Code::kNumerics:
      return "numerics";
    case Code::kMemory:
      return "memory";
    case Code::kBug:
      return "bug";
  }
  return "unknown";
}

namespace internal {

void throw_bug(const char* file, int line, const std::string& text) {
  throw Error(Code::kBug, str(text, "; this is a bug in cleave (", file, ":", line, ")"));
}

}  // namespace internal
}  // namespace cleave::inline base
