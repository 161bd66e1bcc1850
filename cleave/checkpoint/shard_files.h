#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/format/tensor_source.h"
#include "cleave/format/torch_bin.h"
#include "cleave/model/model.h"

namespace cleave::inline checkpoint {

/// The files of a tensor- and pipeline-parallel job, one from each rank.
struct ShardFiles {
  int tp = 1, pp = 1;
  std::string folder;
  std::vector<std::string> paths;  ///< below the folder; of rank (i, j): [j * tp + i]
  bool has_model_key = false;      ///< the state dict may be under the key "model"
};

/// "pytorch_model_tp_1_pp_0.bin", OSLO 2's name for the file of a rank.
std::string oslo_file_name(int tp_rank, int pp_rank);
/// "tp_rank_01_pp_rank_00", the folder in which NxD puts a rank's checkpoint.pt.
std::string nxd_folder_name(int tp_rank, int pp_rank);
/// Name of the file in NxD's folder.
inline constexpr std::string_view kNxdFileName = "checkpoint.pt";

/// OSLO's files pytorch_model_tp_I_pp_J.bin (also with _ep_0, as OSLO 3 names them) or NxD's
/// tp_rank_II_pp_rank_JJ/checkpoint.pt (also with _dp_rank_00) in a folder; nullopt if there are
/// none. Throws Error(kIo) listing missing ranks.
std::optional<ShardFiles> find_shard_files(const std::filesystem::path& folder);

/// A whole tensor whose parts are in several files.
struct JoinedTensor : TensorInfo {
  /// A range of the sharded dim that one file holds, and its place in the file's tensor.
  struct Part {
    size_t file = 0;
    SavedTensor tensor;
    Range whole;
    int64_t local_begin = 0;
  };
  int64_t dim = 0;            ///< the sharded one
  std::vector<Part> parts{};  ///< cover the dim without overlap
};

/// The whole tensors of a job's files. The shapes show how each tensor was sharded: if all shapes
/// are the whole one, these are copies; if they are those of the model's plan, it was sharded as
/// the plan says (heads of a fused or shared matrix); if they add up along one dim, in rank order.
class ShardedTensors : public ListedTensors<JoinedTensor> {
 public:
  /// `config` is the model's config.json, for the whole shapes. Throws Error(kFormat), naming the
  /// tensor and the shapes, if the files do not match each other or the config.
  ShardedTensors(const ShardFiles& files, const Json& config);

  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  [[nodiscard]] std::string path() const override { return files_.folder; }
  [[nodiscard]] std::vector<std::string> file_names() const override { return files_.paths; }

 private:
  struct PlannedShards;
  struct Shard;
  void add_stage(int pp, const PlannedShards& planned);
  [[nodiscard]] JoinedTensor joined(const std::string& name, const std::vector<Shard>& shards,
                                    const PlannedShards& planned) const;

  ShardFiles files_;
  std::vector<TorchFile> open_;
};

}  // namespace cleave::inline checkpoint
