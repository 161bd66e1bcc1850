#pragma once
#include <cstdint>
#include <string>

#include "cleave/text/json.h"

namespace cleave::inline bench {

/// Options of all benchmarks of a model. This file is free of libtorch.
struct BenchOptions {
  int tp = 2;
  std::string dtype = "fp32";
  int64_t batch_size = 1;     ///< sequences
  int threads_per_rank = 0;   ///< 0 = cores / tp
  std::string gemm = "auto";  ///< auto | mkl | onednn
  std::string plain_kernels;  ///< as for set_plain_kernels
  int64_t operations = 0;     ///< number of operations to list, slowest first
  bool json = false;
};

/// Options of `cleave bench train`.
struct BenchTrainOptions : BenchOptions {
  BenchTrainOptions() { batch_size = 4; }
  std::string shape = "llama-135m";
  int64_t seq_len = 0;  ///< tokens; 0 = that of the shape
  double dropout = 0;   ///< of hidden states and attention probabilities
  int64_t steps = 5;    ///< timed steps
  int64_t warmup = 2;   ///< untimed steps before them
};

/// Options of `cleave bench generate`. dtype can also be int8, int4 or int4_sym.
struct BenchGenerateOptions : BenchOptions {
  std::string shape = "gpt2-124m";
  std::string kv_cache_dtype = "auto";  ///< auto | bf16 | int8
  int64_t prompt_len = 128;             ///< tokens
  int64_t new_tokens = 32;              ///< after the first new token
  int64_t repeats = 5;  ///< timed runs, after a warmup run and before a profiled one
};

}  // namespace cleave::inline bench

/// The front end finds these symbols in libcleave by name. They print to stdout and throw Error.
extern "C" void cleave_bench_train(const cleave::BenchTrainOptions& options);
extern "C" void cleave_bench_generate(const cleave::BenchGenerateOptions& options);

namespace cleave::inline bench {

/// A model of well-known sizes with random weights, for benchmarks.
struct BenchShape {
  Json config;
  int64_t seq_len = 0;  ///< tokens per training sequence
};

/// llama-135m (12 layers of 768, 12 heads), llama-1.1b (TinyLlama's sizes), gpt2-124m, bert-base.
/// Throws Error(kUsage) for another name.
BenchShape bench_shape(const std::string& name, double dropout = 0);

}  // namespace cleave::inline bench
