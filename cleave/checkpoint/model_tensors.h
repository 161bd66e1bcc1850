#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cleave/checkpoint/adapter.h"
#include "cleave/format/tensor_source.h"
#include "cleave/model/model.h"

namespace cleave::inline checkpoint {

/// The tensors of a model folder, without an adapter, under their names in its files: safetensors
/// or .bin, in one file or in parts, or the files of a tensor- and pipeline-parallel job
/// (shard_files.h), whose tensors are joined; or its averaged weights. Throws Error(kIo) if the
/// folder has none of them, Error(kFormat) for invalid files.
std::unique_ptr<TensorSource> open_model_files(const ModelFolder& folder);

/// A tensor of a model folder under the name of the model's parameter.
struct ModelTensor : TensorInfo {
  StoredAs stored;
  bool is_of_adapter = false;  ///< it is in the adapter's files, in place of the model's
};

/// A model folder's tensors under the names of the model's parameters, with rows in the parameters'
/// order. Unless `model` has its own adapters (parallel/lora.h), they are merged with the folder's
/// adapter, whose files may also have a head of their own (modules_to_save). Merged weights have
/// the wider of the files' dtype and `merged`, or the files' dtype without `merged`. After the
/// parameters come tensors that belong to the model but that it does not read (a rotary table of
/// older programs).
class ModelTensors : public ListedTensors<ModelTensor> {
 public:
  /// Every parameter of `model` but those of adapters must have a tensor of its whole shape:
  /// otherwise Error(kFormat) lists all missing tensors and all that the model does not use,
  /// Error(kShape) names one of another shape. Error(kFormat) also for an output matrix that
  /// differs from the embedding to which it is tied.
  ModelTensors(const ModelFolder& folder, Model& model, std::optional<DType> merged = {})
      : ModelTensors(folder, model, merged, /*must_fit=*/true) {}

  /// The same for a `model` of another task than the folder's: the tensors that both have. The
  /// files must fit the folder's own model. Parameters of `model` that they lack are missing(),
  /// tensors that it does not use are left_out().
  static ModelTensors for_other_task(const ModelFolder& folder, Model& model, DType merged);

  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  [[nodiscard]] std::string path() const override { return files_->path(); }
  [[nodiscard]] std::vector<std::string> file_names() const override {
    return files_->file_names();
  }
  /// The layout of a parameter stored in 4 bits; nullopt with an adapter, which changes its values.
  [[nodiscard]] std::optional<Int4Layout> int4_layout(std::string_view name) const override;
  void read_int4(std::string_view name, const Int4Block& block,
                 const Int4Memory& out) const override;
  /// The tensors without a parameter.
  [[nodiscard]] std::vector<TensorInfo> additions() const;
  /// Parameters that the files lack (only for another task); tensors of the files that are neither
  /// read nor kept in checkpoints.
  [[nodiscard]] const std::set<std::string>& missing() const { return missing_; }
  [[nodiscard]] const std::set<std::string>& left_out() const { return left_out_; }

 private:
  ModelTensors(const ModelFolder& folder, Model& model, std::optional<DType> merged, bool must_fit);
  void open_adapter(const ModelFolder& folder, Model& model, bool must_fit);
  /// Adds a parameter whose tensor the adapter's files have; returns whether they do.
  bool add_of_adapter(const Parameter& parameter);
  /// Adds the files' tensors that are not in `used` but belong to the model; returns those that do
  /// not.
  std::set<std::string> add_others(const ModelFolder& folder, Model& model,
                                   const std::set<std::string>& used);
  /// Throws Error(kFormat) if the files hold an output matrix other than the embedding, to which
  /// the model ties it: transformers 5 uses both then. Reads only this rank's part.
  void require_copy(const TensorInfo& head, Model& model) const;
  /// Gives the tensors that the adapter changes the wider of their dtype and `merged`.
  void widen_merged(DType merged);
  /// read_base() of the tensor, which must outlive the result.
  [[nodiscard]] BlockReader base_reader(const ModelTensor& tensor) const;
  /// read_block() without the adapter.
  void read_base(const ModelTensor& tensor, std::span<const Slice> slices,
                 std::span<std::byte> out) const;

  std::unique_ptr<TensorSource> files_;
  std::unique_ptr<const AdapterDelta> adapter_;  // null without one
  bool is_merged_ = false;
  size_t num_parameters_ = 0;
  std::set<std::string> missing_, left_out_;
};

/// Whether two tensors of one shape have the same values in a block, in the narrower of their
/// types: programs may have had the same model in another one.
bool have_same_values(const TensorInfo& a, const BlockReader& read_a, const TensorInfo& b,
                      const BlockReader& read_b, const std::vector<Slice>& block);

/// Throws Error(kFormat) naming the tensor if a finite value is infinite in the narrower type.
void check_range(const Tensor& values, const Tensor& narrow, std::string_view tensor);

/// How many tensors of an adapter, whose names are long, a message names.
inline constexpr size_t kNamesOfAdapter = 2;

/// Throws Error(kFormat), "WHAT: 2 missing: ...", unless both are empty. It names at most
/// `most_names` of each.
void require_all(const std::set<std::string>& missing, const std::set<std::string>& unexpected,
                 const std::string& what, size_t most_names = 20);

/// open_model_files, but under the names of the parameters if the files have Meta's names or are
/// those of a parallel job, or the folder has an adapter, which is merged (`merged`: see
/// ModelTensors). Only then must Cleave know the model's family.
std::unique_ptr<TensorSource> open_whole_tensors(const ModelFolder& folder,
                                                 std::optional<DType> merged = {});

/// Compares the folders that a model is read from with their manifests, where they have any: a
/// damaged source must not get a new manifest that matches it. Shows how far it is on a terminal.
/// Throws Error(kFormat) for damage, and Stopped on a signal.
void require_intact_source(const ModelFolder& folder);

/// Warns that `flag` ("--dtype int4") rounds merged weights to 4 bits, if there is an adapter and
/// the files have matrices in 4 bits already: the sum of such a weight and a small change is mostly
/// rounded to the same weight again.
void warn_of_lost_adapter(const ModelFolder& folder, const std::string& flag);

/// The dtype in which `convert --dtype` merges an adapter's weights: `dtype` itself, or fp32 if it
/// is a type of blocks such as q8_0; nullopt for "", which keeps the dtype of the files.
std::optional<DType> merged_dtype(const std::string& dtype);

/// The row in such files of a row of a tensor whose heads have `head_rows` rows (read_interleaved).
int64_t interleaved_row(int64_t row, int64_t head_rows);

/// Reads a block of a tensor whose files have the two halves of each rotary pair next to each
/// other, as Meta and GGUF store q and k of Llama: rows 2i and 2i + 1 of a head of
/// `stored.interleaved_rows` rows are rows i and i + rows/2 of the result. `out` has the block's
/// size.
void read_interleaved(const TensorSource& files, const StoredAs& stored,
                      std::span<const Slice> slices, std::span<std::byte> out);

}  // namespace cleave::inline checkpoint
