#include "cleave/base/dtype.h"

#include <array>

#include "cleave/base/error.h"

namespace cleave {
namespace {

struct Row {
  DType dtype;
  int64_t bytes;
  std::string_view file, name, torch;
};

constexpr std::array kRows{
    Row{DType::kF32, 4, "F32", "fp32", "float32"},    Row{DType::kF64, 8, "F64", "fp64", "float64"},
    Row{DType::kBf16, 2, "BF16", "bf16", "bfloat16"}, Row{DType::kF16, 2, "F16", "fp16", "float16"},
    Row{DType::kI64, 8, "I64", "int64", "int64"},     Row{DType::kI32, 4, "I32", "int32", "int32"},
    Row{DType::kI16, 2, "I16", "int16", "int16"},     Row{DType::kI8, 1, "I8", "int8", "int8"},
    Row{DType::kU8, 1, "U8", "uint8", "uint8"},       Row{DType::kBool, 1, "BOOL", "bool", "bool"}};

const Row& row(DType dtype) {
  for (const Row& r : kRows) {
    if (r.dtype == dtype) return r;
  }
  CLEAVE_BUG("no dtype has the number ", static_cast<int>(dtype));
}

}  // namespace

int64_t item_bytes(DType dtype) {
  return row(dtype).bytes;
}
std::string_view file_name(DType dtype) {
  return row(dtype).file;
}
std::string_view name(DType dtype) {
  return row(dtype).name;
}

std::optional<DType> dtype_from_file_name(std::string_view text) {
  for (const Row& r : kRows) {
    if (r.file == text) return r.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_name(std::string_view text) {
  for (const Row& r : kRows) {
    if (r.name == text || r.torch == text) return r.dtype;
  }
  return std::nullopt;
}

}  // namespace cleave
