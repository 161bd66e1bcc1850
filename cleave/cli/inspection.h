#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/format/gguf.h"
#include "cleave/format/safetensors_header.h"
#include "cleave/text/json.h"

namespace cleave::cli {

/// Tensor-parallel sizes that a model allows.
struct TpSizes {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t max_tp = 0;            ///< at least one head per rank
  std::vector<int64_t> even_tp;  ///< every rank has the same number of heads
};

/// A tensor and its type in the file, which differs from the dtype only for GGUF's quantised types.
struct InspectedTensor : TensorInfo {
  std::string type;
  uint64_t bytes = 0;  ///< in the file
};

/// Contents of a path: tensor file, model folder, checkpoint or run folder.
struct Inspection {
  std::filesystem::path path;  ///< inspected path; for a run its newest checkpoint
  std::string kind;  ///< "safetensors file", "GGUF file", "model folder", "checkpoint", ...
  std::vector<std::string> run_checkpoints;  ///< names, oldest first; for a run folder
  std::optional<Json> config;                ///< config.json or params.json
  std::optional<GgufMetadata> metadata;      ///< of a GGUF file
  std::vector<InspectedTensor> tensors;
  std::vector<std::string> tensor_files;
  std::vector<InspectedTensor> optimizer;  ///< of a checkpoint
  std::optional<int64_t> step;             ///< of a checkpoint
  bool has_manifest = false;

  /// Elements of the model's weights: of matrices in 4 bits (checkpoint/int4_tensors.h) two for
  /// each byte, without scales and minimums.
  [[nodiscard]] int64_t num_parameters() const;
  [[nodiscard]] std::optional<TpSizes> tp_sizes() const;
};

/// Reads headers and JSON files, not tensors. Throws Error(kIo) if there are none, Error(kFormat)
/// if a file violates its format.
Inspection inspect(const std::filesystem::path& path);

/// Number of elements.
int64_t num_elements(const TensorInfo& tensor);

}  // namespace cleave::cli
