#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/format/safetensors_header.h"

namespace cleave::inline format {

/// A matrix [rows, groups * 32] that is stored in numbers q of 4 bits. Each group of 32 elements of
/// a row has a scale: an element is (q - 8) scale, or q scale - min if there are minimums.
struct Int4Layout {
  int64_t rows = 0, groups = 0;
  bool has_mins = false;
};

/// Part of such a matrix: ascending ranges that do not overlap.
struct Int4Block {
  std::vector<Range> rows, groups;
};

/// Memory for the groups of a block, row by row.
struct Int4Memory {
  std::span<std::byte> codes;         ///< 16 bytes: byte i has elements i (lower half) and i + 16
  std::span<std::byte> scales, mins;  ///< fp16; no minimums if the layout has none
};

/// The named tensors of a file or folder, in any supported format.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// In order of file and offset. Names are unique.
  [[nodiscard]] virtual std::vector<TensorInfo> list() const = 0;
  /// The tensor of this name, or null.
  [[nodiscard]] virtual const TensorInfo* find(std::string_view name) const = 0;
  /// The tensor of this name; throws Error(kFormat) with the nearest names if there is none.
  [[nodiscard]] const TensorInfo& at(std::string_view name) const;
  /// Reads a block (the intersection of the slices; without slices the whole tensor), row-major,
  /// into `out` of block_bytes() bytes. Reads only these bytes and small gaps. Any number of
  /// threads may read. Throws as at() does, Error(kUsage) if slices or `out` do not fit.
  virtual void read_block(std::string_view name, std::span<const Slice> slices,
                          std::span<std::byte> out) const = 0;
  /// How the files store the tensor in 4 bits; nullopt for every other tensor. The rows are those
  /// of a layer's outputs, also where the tensor of this name is transposed.
  [[nodiscard]] virtual std::optional<Int4Layout> int4_layout(std::string_view /*name*/) const {
    return std::nullopt;
  }
  /// Reads a block of a tensor that has an int4_layout(), without rounding its numbers again.
  virtual void read_int4(std::string_view name, const Int4Block& block,
                         const Int4Memory& out) const;
  /// The file or folder, for messages.
  [[nodiscard]] virtual std::string path() const = 0;
  /// Names of all files that are read.
  [[nodiscard]] virtual std::vector<std::string> file_names() const = 0;
};

/// A source that keeps a list of its tensors. T is TensorInfo or derived from it.
template <typename T>
class ListedTensors : public TensorSource {
 public:
  /// As list(), with all that the source knows of a tensor.
  [[nodiscard]] const std::vector<T>& tensors() const { return tensors_; }
  [[nodiscard]] std::vector<TensorInfo> list() const override {
    return {tensors_.begin(), tensors_.end()};
  }
  [[nodiscard]] const T* find(std::string_view name) const override {
    const auto place = places_.find(name);
    return place == places_.end() ? nullptr : &tensors_[place->second];
  }
  /// As TensorSource::at().
  [[nodiscard]] const T& at(std::string_view name) const {
    return static_cast<const T&>(TensorSource::at(name));  // from find(), so the cast is safe
  }

 protected:
  /// Appends a tensor. Returns the earlier tensor of its name, which find() returns, or null.
  const T* add(T tensor) {
    const auto [place, is_new] = places_.try_emplace(tensor.name, tensors_.size());
    tensors_.push_back(std::move(tensor));
    return is_new ? nullptr : &tensors_[place->second];
  }

  std::vector<T> tensors_;

 private:
  struct NameHash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };
  std::unordered_map<std::string, size_t, NameHash, std::equal_to<>> places_;  // in tensors_
};

/// Size in bytes of the block that read_block() reads.
uint64_t block_bytes(const TensorInfo& tensor, std::span<const Slice> slices);
/// The same; throws Error(kUsage) unless it is the size of `out`.
uint64_t checked_block_bytes(const TensorInfo& tensor, std::span<const Slice> slices,
                             std::span<const std::byte> out);

/// Opens a file or a model folder with STEM.safetensors or pytorch_model.bin, each a single file or
/// several with an index; safetensors is preferred. With the stem of an adapter, STEM.bin instead
/// of pytorch_model.bin. Throws Error(kIo) if there is none of them, Error(kFormat) if a file is
/// invalid.
std::unique_ptr<TensorSource> open_tensors(const std::filesystem::path& path,
                                           std::string_view stem = "model");

/// The "weight_map" of an index file: tensor to file name. Throws Error(kFormat) if the file is
/// invalid or a file name is a path.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& path);

/// Compares an index with the tensors `found` in the files (both map tensor to file). Throws
/// Error(kFormat) for the first tensor that is missing, in another file, or not in the index.
void check_weight_map(const std::map<std::string, std::string>& weight_map,
                      const std::map<std::string, std::string>& found, const std::string& source);

/// Longest name of a tensor in bytes.
inline constexpr size_t kMaxTensorName = size_t{64} << 10;

/// Throws Error(kFormat) if a tensor's name is empty, too long or has control characters.
void check_tensor_name(std::string_view name, const std::string& source);

/// The most bytes of a tensor that are in memory at a time.
inline constexpr uint64_t kTensorChunkBytes = uint64_t{8} << 20;

/// Divides a block of a tensor into pieces of at most `most_bytes` (or of one index of dim 0, if
/// that is more) and calls `take` with the slices of each, in order. An empty block has one empty
/// piece.
void for_each_chunk(const TensorInfo& tensor, const std::vector<Slice>& slices,
                    const std::function<void(const std::vector<Slice>&)>& take,
                    uint64_t most_bytes = kTensorChunkBytes);

}  // namespace cleave::inline format
