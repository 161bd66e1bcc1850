#pragma once
#include <string>

#include "cleave/checkpoint/convert.h"
#include "cleave/model/model.h"

namespace cleave {

/// Writes a model as one GGUF file for llama.cpp, `options.to`, which appears complete or not at
/// all. `options.dtype` is "" (unchanged), "fp32", "bf16", "fp16", "q8_0" or "q4_k_m"; norms,
/// biases and tables of positions are fp32, as llama.cpp needs them.
///
/// "q4_k_m" is llama.cpp's recipe: Q4_K, and Q6_K for the output matrix, for half of the layers'
/// value and down projections, and for fused query-key-value matrices (where llama.cpp has Q5_K).
/// Rows that are no multiple of a block of 256 get Q8_0, and of 32 fp16.
///
/// Throws as convert() does, and Error(kUsage) for a model family or tokenizer that GGUF lacks.
ConvertReport write_gguf(const ConvertOptions& options, const ModelFolder& from);

}  // namespace cleave
