#pragma once
#include <cstdint>
#include <string>

namespace cleave {

/// The forms of a model folder that convert writes.
enum class ModelFormat : uint8_t {
  kSafetensors,  ///< model.safetensors, or parts with an index
  kBin,          ///< pytorch_model.bin, or parts with an index
  kOslo,         ///< pytorch_model_tp_I_pp_J.bin, one a rank
  kNxd,          ///< tp_rank_II_pp_rank_JJ/checkpoint.pt, one a rank
};

struct ConvertOptions {
  std::string from;  ///< model folder of any form, or a run's folder
  std::string to;    ///< must not exist
  ModelFormat format = ModelFormat::kSafetensors;
  int tp = 1, pp = 1;                       ///< of kOslo and kNxd
  std::string dtype{};                      ///< "fp32", "bf16", ...; empty: as it is
  uint64_t max_file_bytes = 5'000'000'000;  ///< of kSafetensors and kBin
};

/// What convert wrote.
struct ConvertReport {
  int64_t num_tensors = 0;
  int64_t num_files = 0;
  uint64_t bytes = 0;       ///< of all tensor files
  bool left_state = false;  ///< the source has an optimizer's state, which is not carried along
};

/// Writes a model folder's tensors in another form, layout or type, with its config.json (dtype
/// updated), tokenizer files, generation_config.json and a manifest. Tensors go through memory a
/// few MiB at a time. The folder appears under `to` whole or not at all; after a failure, or a
/// signal while a StopSignal lives (throws Stopped), nothing is left.
///
/// Reading and writing kOslo and kNxd, and reading Meta's names, needs a model family that Cleave
/// knows; the others take any. Throws Error(kUsage) for options that do not go together,
/// Error(kShape) for a tp or pp that the model cannot be split over, Error(kIo) also when `to`
/// exists, the disk has too little space or another program writes beside `to`, Error(kFormat) also
/// when the source is not what its manifest says.
ConvertReport convert(const ConvertOptions& options);

}  // namespace cleave

/// convert, as the front end finds it in libcleave.
extern "C" void cleave_convert(const cleave::ConvertOptions& options,
                               cleave::ConvertReport& report);
