#pragma once
#include <string>

#include "cleave/text/json.h"

namespace cleave {

/// A model of well-known sizes with random weights, for benchmarks.
struct BenchShape {
  Json config;
  int64_t seq_len = 0;  ///< tokens per training sequence
};

/// llama-135m (12 layers of 768, 12 heads), llama-1.1b (TinyLlama's sizes), gpt2-124m, bert-base;
/// without dropout. Throws Error(kUsage) for another name.
BenchShape bench_shape(const std::string& name);

}  // namespace cleave
