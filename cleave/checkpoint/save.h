#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cleave/checkpoint/sharded_folder.h"

namespace cleave::inline checkpoint {

/// The contents of a checkpoint. The same on every rank, except for the tensors' values.
struct Checkpoint {
  int64_t step = 0;
  Model* model = nullptr;                ///< its parameters have memory
  const Optimizer* optimizer = nullptr;  ///< null: only the model
  at::ScalarType dtype = at::kFloat;     ///< of the model's files
  std::vector<CarriedTensor> carried{};  ///< as load_model returned them
  std::string state_json{};              ///< state.json: what resuming needs apart from tensors
  /// adapter_config.json of a model with adapters: only they are written, in PEFT's form, not the
  /// frozen weights. Empty: the whole model is written.
  std::string adapter_config{};
  std::vector<NamedFile> files{};  ///< tokenizer and others, written unchanged
};

/// Writes a checkpoint folder that is also a model folder for other programs. Every rank writes its
/// own ranges into place; only checksums are gathered. Collective over `world`, before the ranks
/// write and after. Missing folders above `target` are made.
///
/// When the call returns on any rank, the whole folder exists under `target`. Throws Error(kIo) on
/// the rank whose call failed, also if `target` exists already or the disk has too little space;
/// then nothing is left under `target`.
void save_checkpoint(const std::filesystem::path& target, const Checkpoint& checkpoint,
                     const Writers& writers);

/// The files and tensors that save_checkpoint writes.
FolderContents contents_of(const Checkpoint& checkpoint);

/// An optimizer's moments and step count as STEM.safetensors, and master weights if the weights'
/// files have another type (`weights_dtype`; nullopt: the same type). `parameters` are those of the
/// whole model; the optimizer has this rank's. Throws Error(kUsage) for an optimizer without
/// parameters.
TensorGroup optimizer_group(const Optimizer& optimizer, const Parameters& parameters,
                            std::optional<at::ScalarType> weights_dtype, std::string stem);

/// config.json's text with this dtype, under the keys that the config uses for it.
std::string config_with_dtype(const Json& config, at::ScalarType dtype);

}  // namespace cleave::inline checkpoint
