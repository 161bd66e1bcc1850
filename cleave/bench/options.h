#pragma once
#include <cstdint>
#include <string>

namespace cleave {

/// Everything `cleave bench train` can be told. Free of libtorch.
struct BenchTrainOptions {
  std::string shape = "llama-135m";  ///< llama-135m | gpt2-124m | bert-base
  int tp = 2;
  int64_t batch_size = 4;      ///< sequences
  int64_t seq_len = 0;         ///< tokens; 0 = the shape's
  int64_t steps = 5;           ///< that are timed
  int64_t warmup = 2;          ///< steps before them
  std::string dtype = "fp32";  ///< fp32 | bf16 | fp64
  int threads_per_rank = 0;    ///< 0 = cores / tp
  std::string gemm = "auto";   ///< auto | mkl | onednn
  std::string plain;           ///< kernels to leave to libtorch, comma-separated; "all"
  int64_t operations = 0;      ///< how many to list, longest first
  double timeout_s = 600;
  bool json = false;
};

}  // namespace cleave

/// Found in libcleave by this name. Prints to stdout. Throws Error.
extern "C" void cleave_bench_train(const cleave::BenchTrainOptions& options);
