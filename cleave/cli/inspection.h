#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/format/safetensors_header.h"
#include "cleave/text/json.h"

namespace cleave::cli {

/// Over how many tensor-parallel ranks a model can be split.
struct SplitRoom {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t max_tp = 0;            ///< one head a rank at least
  std::vector<int64_t> even_tp;  ///< every rank gets as many heads
};

/// What lies at a path: a file of tensors, the folder of a model, a checkpoint, a run.
struct Inspection {
  std::filesystem::path path;  ///< of what is shown; for a run its newest checkpoint
  std::string kind;            ///< "safetensors file", "torch file", "model folder", "checkpoint"
  std::vector<std::string> run_checkpoints;  ///< names, oldest first; for a run folder
  std::optional<Json> config;                ///< config.json or params.json
  std::vector<TensorInfo> tensors;
  std::vector<std::string> tensor_files;
  std::vector<TensorInfo> optimizer;  ///< of a checkpoint
  std::optional<int64_t> step;        ///< of a checkpoint
  bool has_manifest = false;

  [[nodiscard]] int64_t num_parameters() const;
  [[nodiscard]] std::optional<SplitRoom> split_room() const;
};

/// Reads headers and JSON files, no tensor. Throws Error(kIo) when nothing of that is there,
/// Error(kFormat) when a file is not as its format says.
Inspection inspect(const std::filesystem::path& path);

/// Number of elements.
int64_t num_elements(const TensorInfo& tensor);

}  // namespace cleave::cli
