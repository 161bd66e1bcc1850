#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace cleave::inline base {

/// Element types that collectives, files and flags share. The values are stored in collective
/// headers.
enum class DType : uint8_t { kF32 = 1, kF64, kBf16, kF16, kI64, kI32, kI16, kI8, kU8, kBool };

/// Bytes of one element.
int64_t item_bytes(DType dtype);

/// The safetensors name: "F32", "F64", "BF16", "F16", "I64", "I32", "I16", "I8", "U8", "BOOL".
std::string_view file_name(DType dtype);

/// The name in flags and messages: "fp32", "fp64", "bf16", "fp16", "int64", ...
std::string_view name(DType dtype);

/// Parses a safetensors name; nullopt if it is unknown.
std::optional<DType> dtype_from_file_name(std::string_view text);

/// Parses a flag's name ("fp32") or a config.json's torch_dtype ("float32"); nullopt if unknown.
std::optional<DType> dtype_from_name(std::string_view text);

}  // namespace cleave::inline base
