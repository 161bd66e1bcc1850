#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cleave/base/dtype.h"

namespace cleave::inline format {

// Element types of GGUF tensors and the blocks that quantised ones are stored in. Source: the GGUF
// specification and the block formats of ggml (github.com/ggml-org/ggml, docs/gguf.md).

/// The element types that are read and written, with their numbers in a file.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,  ///< only read
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ6_K = 14,
  kBF16 = 30,
};

/// A row of a tensor consists of blocks; a type that is not quantised has blocks of one element.
struct GgufBlock {
  std::string_view name;  ///< "Q8_0"
  int64_t elements = 1;
  int64_t bytes = 0;
  DType dtype = DType::kF32;  ///< of the elements as they are read
};

/// The blocks of a type.
[[nodiscard]] GgufBlock block_of(GgufType type);

/// The type of a number in a file; nullopt if it is not read.
std::optional<GgufType> gguf_type(uint32_t number);
/// The name of a type that need not be supported: "Q5_K", or "type 99".
std::string gguf_type_name(uint32_t number);

/// Whether the type has blocks of several elements.
[[nodiscard]] bool is_quantized(GgufType type);

/// Decodes whole blocks of a quantised type: `values` has block_of(type).elements for each block of
/// `blocks`.
void dequantize(GgufType type, std::span<const std::byte> blocks, std::span<float> values);

/// 32 elements of a block of kQ4_0 or kQ4_K in 4 bits, as in Int4Memory.
struct Int4Group {
  uint16_t scale = 0, min = 0;  ///< fp16; Q4_K's, which are products, are rounded
  std::array<std::byte, 16> codes{};
};

/// Group `index` of a block of kQ4_0 (one group, without minimum) or kQ4_K (8 groups).
Int4Group int4_group(GgufType type, std::span<const std::byte> block, size_t index);

/// Encodes whole blocks as kQ8_0, kQ4_K or kQ6_K, the inverse of dequantize().
///
/// The error of an element of Q8_0 is at most (1/2 + 127/2048) max |value| / 127 of its block. The
/// root-mean-square error of a part of Q4_K (32 elements) or Q6_K (16 elements) is at most half the
/// step with which all of its values are reached: (max - min(min, 0) + dmin) / 15 + d, or
/// max |value| / 31 + d, where d and dmin are the two scales of the block. Throws Error(kFormat)
/// naming `what` for NaN, infinity and values out of the range of the scales.
void quantize(GgufType type, std::span<const float> values, std::span<std::byte> blocks,
              const std::string& what);

/// IEEE half precision, as in the blocks. Rounds to nearest, ties to even; too large values become
/// infinity.
uint16_t half_from_float(float value);
float float_from_half(uint16_t bits);

}  // namespace cleave::inline format
