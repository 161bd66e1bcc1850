#pragma once
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cleave/format/tensor_source.h"
#include "cleave/model/model.h"

namespace cleave {

/// The tensors of a model folder under the names that its files have: safetensors or .bin, alone or
/// in parts, or the files of a tensor- and pipeline-parallel job (split_files.h), whose tensors
/// appear whole. Throws Error(kIo) when the folder has none of them, Error(kFormat) when they are
/// not as their format says.
std::unique_ptr<TensorSource> open_model_files(const ModelFolder& folder);

/// A model folder's tensors under the names of the model's parameters, rows in their order, and
/// after them those that the model does not read but that belong to it (a rotary table that older
/// programs stored).
class ModelTensors : public TensorSource {
 public:
  /// Every parameter of `model` has a tensor of its whole shape: otherwise Error(kFormat) lists all
  /// that are missing and all that the model has no use for, Error(kShape) names one of another
  /// shape.
  ModelTensors(const ModelFolder& folder, Model& model) : ModelTensors(folder, model, true) {}

  /// The same for a model that learns another task than the folder's own, which the files must fit:
  /// it has what both have. Those of its parameters that the files lack are missing(), tensors that
  /// it has no use for are left_out().
  static ModelTensors for_other_task(const ModelFolder& folder, Model& model);

  [[nodiscard]] std::vector<TensorInfo> list() const override;
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override;
  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  [[nodiscard]] std::string path() const override { return files_->path(); }
  [[nodiscard]] std::vector<std::string> file_names() const override {
    return files_->file_names();
  }
  /// Those that no parameter has.
  [[nodiscard]] std::vector<TensorInfo> additions() const;
  /// Parameters that the files lack, none but for another task; tensors of the files that no
  /// parameter is read from and no checkpoint keeps.
  [[nodiscard]] const std::set<std::string>& missing() const { return missing_; }
  [[nodiscard]] const std::set<std::string>& left_out() const { return left_out_; }

 private:
  ModelTensors(const ModelFolder& folder, Model& model, bool must_fit);
  struct Entry {
    TensorInfo info;
    StoredAs stored;
  };
  void add(TensorInfo info, StoredAs stored);

  std::unique_ptr<TensorSource> files_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> by_name_;
  size_t num_parameters_ = 0;
  std::set<std::string> missing_, left_out_;
};

/// Throws Error(kFormat), "WHAT: 2 missing: ...", unless both are empty.
void require_all(const std::set<std::string>& missing, const std::set<std::string>& unexpected,
                 const std::string& what);

/// open_model_files under the names of the parameters where files are named or cut in a way of
/// their own (Meta's, split jobs): only then the model's family must be known.
std::unique_ptr<TensorSource> open_whole_tensors(const ModelFolder& folder);

}  // namespace cleave
