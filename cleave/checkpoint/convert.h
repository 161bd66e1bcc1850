#pragma once
#include <cstdint>
#include <string>

namespace cleave::inline checkpoint {

/// The formats of a model folder that convert writes.
enum class ModelFormat : uint8_t {
  kSafetensors,  ///< model.safetensors, or parts with an index
  kBin,          ///< pytorch_model.bin, or parts with an index
  kOslo,         ///< pytorch_model_tp_I_pp_J.bin, one for each rank
  kNxd,          ///< tp_rank_II_pp_rank_JJ/checkpoint.pt, one for each rank
  kGguf,         ///< one GGUF file, for llama.cpp (gguf_file.h)
};

struct ConvertOptions {
  std::string from;  ///< model folder of any format, a run folder, or a GGUF file
  std::string to;    ///< must not exist
  ModelFormat format = ModelFormat::kSafetensors;
  int tp = 1, pp = 1;                       ///< for kOslo and kNxd
  std::string dtype{};                      ///< "fp32", "bf16", ...; empty: unchanged; for kGguf
                                            ///< also "q8_0" and "q4_k_m", for kSafetensors
                                            ///< "int4" and "int4_sym" (int4_tensors.h)
  uint64_t max_file_bytes = 5'000'000'000;  ///< for kSafetensors and kBin
  std::string adapter{};  ///< an adapter's folder (LoRA), merged into the model; "" = none
  bool ema = false;       ///< the averaged weights of a checkpoint (train --ema), which are fp32
};

/// What convert wrote.
struct ConvertReport {
  int64_t num_tensors = 0;
  int64_t num_files = 0;
  uint64_t bytes = 0;       ///< of all tensor files
  bool left_state = false;  ///< the source has an optimizer state, which was not converted
  /// Tensors of a GGUF file with more bits than the type asked for: its blocks do not fit the rows.
  int64_t num_wider = 0;
};

/// Writes a model folder's tensors in another format, layout or type, with its config.json (dtype
/// updated), tokenizer files, generation_config.json and a manifest. Only a few MiB of tensors are
/// in memory at a time. The folder appears under `to` whole or not at all; after a failure, or a
/// signal while a StopSignal exists (throws Stopped), nothing is left.
///
/// kGguf writes one file without config.json and manifest; `to` is its name.
///
/// kOslo, kNxd and kGguf, and reading Meta's or GGUF's names, need a model family that Cleave
/// knows; other formats work for any. Throws Error(kUsage) for options that exclude each other,
/// Error(kShape) for a tp or pp that the model cannot be split over, Error(kIo) also if `to`
/// exists, the disk has too little space or another program writes `to`, Error(kFormat) also if
/// the source differs from its manifest.
ConvertReport convert(const ConvertOptions& options);

}  // namespace cleave::inline checkpoint

/// convert(), which the front end looks up in libcleave by this name.
extern "C" void cleave_convert(const cleave::ConvertOptions& options,
                               cleave::ConvertReport& report);
