#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/format/tensor_source.h"
#include "cleave/format/torch_bin.h"
#include "cleave/model/model.h"

namespace cleave {

/// The files that the ranks of a tensor- and pipeline-parallel job wrote, one each.
struct SplitFiles {
  int tp = 1, pp = 1;
  std::string folder;
  std::vector<std::string> paths;  ///< below the folder; of rank (i, j): [j * tp + i]
  bool has_model_key = false;      ///< the state dict may be a member "model" of what is saved
};

/// "pytorch_model_tp_1_pp_0.bin", as OSLO 2 names the file of a rank.
std::string oslo_file_name(int tp_rank, int pp_rank);
/// "tp_rank_01_pp_rank_00", the folder in which NxD puts a rank's checkpoint.pt.
std::string nxd_folder_name(int tp_rank, int pp_rank);
/// Name of the file in NxD's folder.
inline constexpr std::string_view kNxdFileName = "checkpoint.pt";

/// OSLO's files pytorch_model_tp_I_pp_J.bin (also with _ep_0, as OSLO 3 names them) or NxD's
/// tp_rank_II_pp_rank_JJ/checkpoint.pt (also with _dp_rank_00) in a folder; nothing when there is
/// none of either. Throws Error(kIo) listing those that are missing between the others.
std::optional<SplitFiles> find_split_files(const std::filesystem::path& folder);

/// The whole tensors behind the files of a job. How each tensor was cut follows from the shapes:
/// the same shape everywhere is a copy; the shapes that the model's own plan gives are cut as that
/// says (heads of a fused or shared matrix); shapes that add up along one dim are cut in order.
class SplitTensors : public TensorSource {
 public:
  /// `config` is the model's config.json, for the whole shapes. Throws Error(kFormat) when the
  /// files do not agree with each other or with it, naming the tensor and the shapes.
  SplitTensors(const SplitFiles& files, const Json& config);

  [[nodiscard]] std::vector<TensorInfo> list() const override;
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override;
  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  [[nodiscard]] std::string path() const override { return files_.folder; }
  [[nodiscard]] std::vector<std::string> file_names() const override { return files_.paths; }

 private:
  /// Indices of the cut dim that one file holds, and where there.
  struct Part {
    size_t file = 0;
    SavedTensor tensor;
    Range whole;
    int64_t local_begin = 0;
  };
  struct Entry {
    TensorInfo info;
    int64_t dim = 0;          ///< the cut one
    std::vector<Part> parts;  ///< they cover the dim without overlap
  };
  struct Cuts;
  struct Shard;
  void add(const std::string& name, const std::vector<Shard>& shards, const Cuts& cuts);
  [[nodiscard]] Entry joined(const std::string& name, const std::vector<Shard>& shards,
                             const Cuts& cuts) const;

  SplitFiles files_;
  std::vector<TorchFile> open_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace cleave
