#pragma once
#include <cstdint>
#include <string>

namespace cleave {

/// What every bench of a model can be told. Free of libtorch, as all of this file.
struct BenchOptions {
  int tp = 2;
  std::string dtype = "fp32";
  int64_t batch_size = 1;     ///< sequences
  int threads_per_rank = 0;   ///< 0 = cores / tp
  std::string gemm = "auto";  ///< auto | mkl | onednn
  std::string plain_kernels;  ///< as set_plain_kernels takes them
  int64_t operations = 0;     ///< how many to list, longest first
  bool json = false;
};

/// Everything `cleave bench train` can be told.
struct BenchTrainOptions : BenchOptions {
  BenchTrainOptions() { batch_size = 4; }
  std::string shape = "llama-135m";
  int64_t seq_len = 0;  ///< tokens; 0 = the shape's
  int64_t steps = 5;    ///< that are timed
  int64_t warmup = 2;   ///< steps before them
};

/// Everything `cleave bench generate` can be told. dtype may be int8 too.
struct BenchGenerateOptions : BenchOptions {
  std::string shape = "gpt2-124m";
  int64_t prompt_len = 128;  ///< tokens
  int64_t new_tokens = 32;   ///< after the first one
  int64_t repeats = 5;       ///< that are timed, between one to warm up and one to see what on
};

}  // namespace cleave

/// Found in libcleave by these names. Print to stdout. Throw Error.
extern "C" void cleave_bench_train(const cleave::BenchTrainOptions& options);
extern "C" void cleave_bench_generate(const cleave::BenchGenerateOptions& options);
