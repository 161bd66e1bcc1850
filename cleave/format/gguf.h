#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "cleave/file/file.h"
#include "cleave/format/gguf_blocks.h"
#include "cleave/format/tensor_source.h"

namespace cleave::inline format {

/// The types of metadata values, with their numbers in a file.
enum class GgufKind : uint32_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

/// A metadata value, or an array of values of one kind.
struct GgufValue {
  using Ints = std::vector<int64_t>;  ///< for all integer kinds; kBool gives 0 or 1
  using Numbers = std::vector<double>;
  using Strings = std::vector<std::string>;

  GgufKind kind = GgufKind::kU32;  ///< of the elements, if it is an array
  std::variant<bool, int64_t, double, std::string, Ints, Numbers, Strings> value{};

  /// The value as text for people; an array as its length.
  [[nodiscard]] std::string text() const;
};

/// The metadata of a GGUF file, in order.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  explicit GgufMetadata(std::string source) : source_(std::move(source)) {}

  /// Adds a value; throws Error(kFormat) for a key that is there already.
  void add(std::string key, GgufValue value);
  /// Adds a value of 32 bits, a boolean or a string, as add().
  void add_u32(std::string key, int64_t value) { add(std::move(key), {GgufKind::kU32, value}); }
  void add_f32(std::string key, double value) { add(std::move(key), {GgufKind::kF32, value}); }
  void add_bool(std::string key, bool value) { add(std::move(key), {GgufKind::kBool, value}); }
  void add_string(std::string key, std::string value) {
    add(std::move(key), {GgufKind::kString, std::move(value)});
  }

  /// All of it.
  [[nodiscard]] const std::vector<std::pair<std::string, GgufValue>>& entries() const {
    return entries_;
  }
  /// The value of a key, or null.
  [[nodiscard]] const GgufValue* find(std::string_view key) const;
  /// Whether the key is there.
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  /// The value of a key. Throws Error(kFormat) naming file and key if it is missing or has another
  /// type.
  [[nodiscard]] int64_t int_at(std::string_view key) const;
  /// As int_at.
  [[nodiscard]] const std::string& string_at(std::string_view key) const;
  /// As int_at.
  [[nodiscard]] const GgufValue::Ints& ints_at(std::string_view key) const;
  /// As int_at.
  [[nodiscard]] const GgufValue::Numbers& numbers_at(std::string_view key) const;
  /// As int_at.
  [[nodiscard]] const GgufValue::Strings& strings_at(std::string_view key) const;
  /// The value of a key; `fallback` if it is missing. Throws as int_at for another type.
  [[nodiscard]] int64_t int_or(std::string_view key, int64_t fallback) const;
  /// As int_or.
  [[nodiscard]] double number_or(std::string_view key, double fallback) const;
  /// As int_or.
  [[nodiscard]] bool bool_or(std::string_view key, bool fallback) const;
  /// As int_or.
  [[nodiscard]] std::string string_or(std::string_view key, std::string_view fallback) const;
  /// Throws Error(kFormat): "FILE: metadata 'KEY': PROBLEM".
  [[noreturn]] void fail(std::string_view key, std::string_view problem) const;

 private:
  template <class T>
  [[nodiscard]] const T& at(std::string_view key, std::string_view expected) const;

  std::string source_;
  std::vector<std::pair<std::string, GgufValue>> entries_;
  std::unordered_map<std::string, size_t> by_key_;
};

/// A tensor of a GGUF file. The shape is in PyTorch's order, the reverse of the file's; `dtype` is
/// that of the elements as they are read.
struct GgufTensor : TensorInfo {
  GgufType type = GgufType::kF32;
  uint64_t begin = 0;  ///< of its bytes in the file
  uint64_t bytes = 0;
  size_t part = 0;  ///< the file that has it, of Gguf::file_names()
};

/// Most metadata entries and elements of all arrays in a file; most tensors of all parts.
inline constexpr uint64_t kMaxGgufEntries = uint64_t{1} << 16;
inline constexpr uint64_t kMaxGgufElements = uint64_t{1} << 21;
/// Most bytes of all metadata strings in a file.
inline constexpr uint64_t kMaxGgufText = uint64_t{1} << 26;
/// Longest metadata key and largest alignment in bytes.
inline constexpr uint64_t kMaxGgufKey = 65535;
inline constexpr int64_t kMaxGgufAlignment = int64_t{1} << 16;
inline constexpr int64_t kGgufAlignment = 32;  ///< the default

/// A GGUF file (version 2 or 3, little-endian), open for reading, or the parts that llama.cpp's
/// gguf-split makes of one. Quantised tensors are decoded to fp32. Source: the GGUF specification
/// (github.com/ggml-org/ggml, docs/gguf.md).
///
/// Opening reads the headers only. The tensors of a file must follow each other as the
/// specification lays them out: each at the next multiple of the alignment, up to the end of the
/// file. Any number of threads may read.
class Gguf : public ListedTensors<GgufTensor> {
 public:
  /// `path` is the file, or the first part, whose other parts lie beside it. Throws Error(kIo) if
  /// a file cannot be opened or a part is missing, Error(kFormat) for anything that the format
  /// does not allow, for another part than the first, for parts that do not belong together, for
  /// more entries than the limits, and for tensor types that are not read.
  static Gguf open(const std::filesystem::path& path);

  /// Of the first part.
  [[nodiscard]] const GgufMetadata& metadata() const { return metadata_; }

  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  /// Of Q4_0 and Q4_K.
  [[nodiscard]] std::optional<Int4Layout> int4_layout(std::string_view name) const override;
  void read_int4(std::string_view name, const Int4Block& block,
                 const Int4Memory& out) const override;
  /// Of the first part.
  [[nodiscard]] std::string path() const override { return files_.front().path(); }
  [[nodiscard]] std::vector<std::string> file_names() const override;

 private:
  void read_decoded(const GgufTensor& tensor, std::span<const Slice> slices,
                    std::span<std::byte> out) const;
  void add_part(File file, std::vector<GgufTensor> tensors);

  std::vector<File> files_;
  GgufMetadata metadata_;
};

/// Whether the path is a file whose name ends in ".gguf".
bool is_gguf(const std::filesystem::path& path);

/// `offset` rounded up to a multiple of `alignment`. Throws Error(kFormat) naming `what` if it does
/// not fit in 64 bits.
uint64_t gguf_aligned(uint64_t offset, uint64_t alignment, const std::string& what);

}  // namespace cleave::inline format
