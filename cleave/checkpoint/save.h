#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cleave/checkpoint/sharded_folder.h"

namespace cleave {

/// What a checkpoint is made of. The same on every rank, but for the tensors themselves.
struct Checkpoint {
  int64_t step = 0;
  Model* model = nullptr;                ///< its parameters have memory
  const Optimizer* optimizer = nullptr;  ///< null: a model alone
  at::ScalarType dtype = at::kFloat;     ///< of the model's files
  std::vector<CarriedTensor> carried;    ///< as load_model gave them
  std::string state_json;                ///< what resuming needs besides tensors
  std::vector<NamedFile> files;          ///< tokenizer and others, written as they are
};

/// Writes a checkpoint folder that is at once a model folder for other programs: every rank writes
/// its own ranges into place, nothing is gathered but checksums. Collective over `world`: two
/// agreements, one before the ranks write and one after.
///
/// The folder appears under `target`, whole, when the call returns on any rank. Throws Error(kIo)
/// on the rank whose call failed, also when `target` exists already or the disk has too little
/// space; nothing is left under `target` then.
void save_checkpoint(const std::filesystem::path& target, const Checkpoint& checkpoint,
                     const Writers& writers);

/// What save_checkpoint writes.
FolderContents contents_of(const Checkpoint& checkpoint);

/// An optimizer's moments and step count as STEM.safetensors, and the masters where the weights'
/// files have another type than these (nothing: the weights are stored as they are). `parameters`
/// are those of the whole model, of which the optimizer has this rank's. Throws Error(kUsage) for
/// an optimizer without parameters.
TensorGroup optimizer_group(const Optimizer& optimizer, const Parameters& parameters,
                            std::optional<at::ScalarType> weights_dtype, std::string stem);

/// config.json's text with the dtype of the files, under the keys that the config has for it.
std::string config_with_dtype(const Json& config, at::ScalarType dtype);

}  // namespace cleave
