#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cleave/format/tensor_source.h"
#include "cleave/kernels/cpu/int4.h"
#include "cleave/model/model.h"
#include "cleave/nn/linear.h"

namespace cleave::inline checkpoint {

// A matrix NAME of a layer in files of ours in 4 bits consists of
//
//   NAME.int4         uint8 [out, in / 2]: 16 bytes for each group of 32 inputs; byte i has inputs
//                     i (lower half) and i + 16. NAME.int4_t if NAME is stored [in, out].
//   NAME.int4_scales  fp16 [out, in / 32]
//   NAME.int4_mins    fp16 [out, in / 32], if it has minimums
//
// with the elements of Int4Layout.

/// The tensors of such files under the names of the matrices, in fp32; other tensors as they are.
class Int4Tensors final : public ListedTensors<TensorInfo> {
 public:
  /// Whether the files have a matrix in 4 bits.
  static bool has_any(const TensorSource& files);
  /// Throws Error(kFormat) for a matrix that lacks a part or has parts of other types or shapes.
  explicit Int4Tensors(std::unique_ptr<TensorSource> files);

  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  [[nodiscard]] std::optional<Int4Layout> int4_layout(std::string_view name) const override;
  void read_int4(std::string_view name, const Int4Block& block,
                 const Int4Memory& out) const override;
  [[nodiscard]] std::string path() const override { return files_->path(); }
  [[nodiscard]] std::vector<std::string> file_names() const override {
    return files_->file_names();
  }

 private:
  struct Matrix {
    Int4Layout layout;
    bool is_transposed = false;
  };
  void add_matrix(const TensorInfo& codes, std::string_view ending);
  void add_new(TensorInfo info);

  std::unique_ptr<TensorSource> files_;
  std::unordered_map<std::string, Matrix> matrices_;
};

/// The tensors of such files of a model: the matrices of its Linear layers with widths in multiples
/// of 32 in 4 bits, rounded as they are read, and all other tensors of `source`. Heads, routers and
/// matrices that an embedding reads too keep their type.
class Int4Source : public ListedTensors<TensorInfo> {
 public:
  /// `model` is the source's, with its parameters' names. Throws Error(kUsage) if it has no such
  /// matrix.
  Int4Source(const TensorSource& source, Model& model, bool has_mins);

  /// For a matrix in 4 bits, `slices` may only select rows.
  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  [[nodiscard]] std::string path() const override { return source_.path(); }
  [[nodiscard]] std::vector<std::string> file_names() const override {
    return source_.file_names();
  }

 private:
  struct Part {
    std::string matrix;
    bool is_transposed = false;
  };
  /// Outputs `rows` of a matrix.
  [[nodiscard]] Int4Rows rounded_rows(const TensorInfo& info, bool is_transposed, Range rows) const;

  /// As rounded_rows(), without codes if the scales and minimums of the rows are known.
  [[nodiscard]] Int4Rows rounded_once(const TensorInfo& info, bool is_transposed, Range rows,
                                      bool needs_codes) const;

  /// Scales and minimums of the last matrix, an eighth of a byte for each element. Without them, a
  /// writer, which reads codes, scales and minimums in turn, would round each matrix three times.
  struct Kept {
    std::string matrix;
    Tensor scales, mins;
    std::vector<bool> is_known;  // of the rows
  };

  const TensorSource& source_;
  bool has_mins_;
  std::unordered_map<std::string, Part> parts_;  // tensors of matrices in 4 bits
  mutable std::mutex kept_mutex_;
  mutable Kept kept_;
};

/// The Linear layers that take 4 bits and whose matrix no embedding reads, by the weight.
std::unordered_map<const Parameter*, Linear*> int4_layers(Layer& model);

/// Reads a layer's part of its weight from files that store it in 4 bits. Returns false without
/// reading, on every rank, if they do not, or in another shape than the layer's. Throws
/// Error(kFormat) for scales that are not finite.
bool load_int4(Linear& layer, const TensorSource& files);

}  // namespace cleave::inline checkpoint
