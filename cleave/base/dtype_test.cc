#include "cleave/base/dtype.h"

#include <array>
#include <string>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "tests/support/thrown.h"

namespace cleave::dtype_test {
namespace {

struct Row {
  DType dtype;
  int64_t bytes;
  std::string file, flag, torch;
};

// The names of the safetensors format and of PyTorch, and IEEE's sizes.
const std::array kRows{
    Row{DType::kF32, 4, "F32", "fp32", "float32"},    Row{DType::kF64, 8, "F64", "fp64", "float64"},
    Row{DType::kBf16, 2, "BF16", "bf16", "bfloat16"}, Row{DType::kF16, 2, "F16", "fp16", "float16"},
    Row{DType::kI64, 8, "I64", "int64", "int64"},     Row{DType::kI32, 4, "I32", "int32", "int32"},
    Row{DType::kI16, 2, "I16", "int16", "int16"},     Row{DType::kI8, 1, "I8", "int8", "int8"},
    Row{DType::kU8, 1, "U8", "uint8", "uint8"},       Row{DType::kBool, 1, "BOOL", "bool", "bool"}};

TEST(DType, NamesAndSizes_AreThoseOfTheFormats) {
  for (const Row& row : kRows) {
    EXPECT_EQ(item_bytes(row.dtype), row.bytes) << row.flag;
    EXPECT_EQ(file_name(row.dtype), row.file);
    EXPECT_EQ(name(row.dtype), row.flag);
    EXPECT_EQ(dtype_from_file_name(row.file), row.dtype);
    EXPECT_EQ(dtype_from_name(row.flag), row.dtype);
    EXPECT_EQ(dtype_from_name(row.torch), row.dtype);
  }
}

TEST(DType, OtherNames_AreUnknown) {
  for (const char* text : {"", "f32", "FP32", "F8_E4M3", "fp", "fp32 "}) {
    EXPECT_EQ(dtype_from_file_name(text), std::nullopt) << text;
    EXPECT_EQ(dtype_from_name(text), std::nullopt) << text;
  }
  EXPECT_EQ(dtype_from_file_name("fp32"), std::nullopt);
  EXPECT_EQ(dtype_from_name("F32"), std::nullopt);
}

TEST(DType, NumberOfNoDtype_IsABug) {
  for (const int number : {0, 11, 255}) {
    const Error error = test::thrown_by([&] { item_bytes(static_cast<DType>(number)); });
    EXPECT_EQ(error.code(), Code::kBug) << number;
  }
}

}  // namespace
}  // namespace cleave::dtype_test
