#pragma once
#include <string>
#include <vector>

#include "cleave/checkpoint/convert.h"
#include "cleave/format/gguf.h"
#include "cleave/model/model.h"
#include "cleave/text/json.h"

namespace cleave::inline checkpoint {

/// A tensor of a GGUF file, with the name and the shape of the model's parameter.
struct GgufModelTensor : TensorInfo {
  std::string stored;            ///< its name in the file
  int64_t interleaved_rows = 0;  ///< as StoredAs
  bool is_transposed = false;
  int64_t expert = -1;  ///< as GgufName
  double added = 0;     ///< as GgufName
};

/// The tensors of a GGUF file under the names of the model's parameters, with rows in the
/// parameters' order and one tensor for each expert's matrix.
/// Tensors that belong to no parameter keep their names. The factors of rotary scaling are left
/// out, because config.json has them.
class GgufTensors : public ListedTensors<GgufModelTensor> {
 public:
  /// `config` is the file's (config_from_gguf). Throws Error(kFormat) for an unknown architecture,
  /// for interleaved heads with an odd number of rows, and for experts that are no list of
  /// matrices.
  GgufTensors(Gguf file, const Json& config);

  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  [[nodiscard]] std::optional<Int4Layout> int4_layout(std::string_view name) const override;
  void read_int4(std::string_view name, const Int4Block& block,
                 const Int4Memory& out) const override;
  [[nodiscard]] std::string path() const override { return file_.path(); }
  [[nodiscard]] std::vector<std::string> file_names() const override { return file_.file_names(); }

 private:
  void set_interleaved(GgufModelTensor& tensor, const Json& config) const;
  void read_transposed(const GgufModelTensor& tensor, std::span<const Slice> slices,
                       std::span<std::byte> out) const;
  void read_expert(const GgufModelTensor& tensor, std::span<const Slice> slices,
                   std::span<std::byte> out) const;

  Gguf file_;
};

/// Writes a model as one GGUF file for llama.cpp, `options.to`, which appears complete or not at
/// all. `options.dtype` is "" (unchanged), "fp32", "bf16", "fp16", "q8_0" or "q4_k_m"; norms,
/// biases and tables of positions are fp32, as llama.cpp needs them.
///
/// "q4_k_m" is llama.cpp's recipe: Q4_K, and Q6_K for the output matrix, for half of the layers'
/// value and down projections, and for fused query-key-value matrices (where llama.cpp has Q5_K).
/// Rows that are not a multiple of a block of 256 get Q8_0, and of 32 fp16.
///
/// Throws as convert() does, and Error(kUsage) for a model family or tokenizer that GGUF lacks.
ConvertReport write_gguf(const ConvertOptions& options, const ModelFolder& from);

}  // namespace cleave::inline checkpoint
