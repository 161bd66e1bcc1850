#include "cleave/base/dtype.h"

#include <array>

#include "cleave/base/error.h"

namespace cleave::inline base {
namespace {

struct Entry {
  DType dtype;
  int64_t bytes;
  std::string_view file, name, torch;
};

constexpr std::array kDTypes{Entry{DType::kF32, 4, "F32", "fp32", "float32"},
                             Entry{DType::kF64, 8, "F64", "fp64", "float64"},
                             Entry{DType::kBf16, 2, "BF16", "bf16", "bfloat16"},
                             Entry{DType::kF16, 2, "F16", "fp16", "float16"},
                             Entry{DType::kI64, 8, "I64", "int64", "int64"},
                             Entry{DType::kI32, 4, "I32", "int32", "int32"},
                             Entry{DType::kI16, 2, "I16", "int16", "int16"},
                             Entry{DType::kI8, 1, "I8", "int8", "int8"},
                             Entry{DType::kU8, 1, "U8", "uint8", "uint8"},
                             Entry{DType::kBool, 1, "BOOL", "bool", "bool"}};

const Entry& entry_of(DType dtype) {
  for (const Entry& entry : kDTypes) {
    if (entry.dtype == dtype) return entry;
  }
  CLEAVE_BUG("no dtype has the number ", static_cast<int>(dtype));
}

}  // namespace

int64_t item_bytes(DType dtype) {
  return entry_of(dtype).bytes;
}
std::string_view file_name(DType dtype) {
  return entry_of(dtype).file;
}
std::string_view name(DType dtype) {
  return entry_of(dtype).name;
}

std::optional<DType> dtype_from_file_name(std::string_view text) {
  for (const Entry& entry : kDTypes) {
    if (entry.file == text) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_name(std::string_view text) {
  for (const Entry& entry : kDTypes) {
    if (entry.name == text || entry.torch == text) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace cleave::inline base
