#include <memory>

#include "cleave/bench/options.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/mesh/machine_options.h"

namespace cleave::cli {
namespace {

/// Adds the flags that both commands have for ranks and output.
template <class Options>
void define_ranks_and_output(Flags& flags, Options& options) {
  flags.group("ranks");
  flags.add({&options.tp, "tp", "N", "tensor-parallel ranks; each holds a shard of every layer", "",
             option::kHostRanks});
  flags.add({&options.threads_per_rank, "threads-per-rank", "N", "compute threads of a rank",
             "cores / tp", option::kThreads});
  flags.add({&options.gemm, "gemm", "", "library for fp32 matrix products", "",
             option::Choices{"auto", "mkl", "onednn"}});
  flags.add(option::plain_kernels(&options.plain_kernels));
  flags.group("output");
  flags.add({&options.operations, "operations", "N", "list the N longest operations", "off",
             option::Limits{1, 1e6}});
  flags.add({&options.json, "json", "", "print one line of JSON", "off"});
}

void define_train(Flags& flags, BenchTrainOptions& options) {
  flags.group("workload");
  flags.add({&options.shape, "shape", "", "model shape; weights are random", "",
             option::Choices{"llama-135m", "gpt2-124m", "bert-base", "llama-1.1b"}});
  flags.add({&options.dtype, "dtype", "", "dtype of forward and backward", "",
             option::Choices{"fp32", "bf16", "fp64"}});
  flags.add({&options.batch_size, "batch-size", "N", "sequences per step", "", option::kSequences});
  flags.add({&options.seq_len, "seq-len", "N", "tokens per sequence", "256, 64 or 128 by shape",
             option::kLength});
  flags.add({&options.dropout, "dropout", "P", "dropout of hidden states and attention", "",
             option::Limits{.low = 0, .high = 0.99}});
  flags.add({&options.steps, "steps", "N", "timed steps; the median is reported", "",
             option::Limits{.low = 1, .high = 1e9}});
  flags.add({&options.warmup, "warmup", "N", "untimed steps before them", "", option::kSteps});
  define_ranks_and_output(flags, options);
}

void define_generate(Flags& flags, BenchGenerateOptions& options) {
  flags.group("workload");
  flags.add({&options.shape, "shape", "", "model shape; weights are random", "",
             option::Choices{"gpt2-124m", "llama-1.1b", "llama-135m"}});
  flags.add({&options.dtype, "dtype", "", "dtype of weights", "",
             option::Choices{"fp32", "bf16", "int8", "int4", "int4_sym"}});
  flags.add({&options.kv_cache_dtype, "kv-cache-dtype", "", "dtype of keys and values", "",
             option::Choices{"auto", "bf16", "int8"}});
  flags.add(
      {&options.batch_size, "batch-size", "N", "sequences per batch", "", option::kSequences});
  flags.add({&options.prompt_len, "prompt-len", "N", "tokens per prompt", "", option::kLength});
  flags.add(
      {&options.new_tokens, "new-tokens", "N", "new tokens per sequence", "", option::kLength});
  flags.add({&options.repeats, "repeats", "N", "timed runs; the median is reported", "",
             option::Limits{1, 1e6}});
  define_ranks_and_output(flags, options);
}

}  // namespace

Command bench_train_command() {
  return {.name = "bench train",
          .summary = "time training steps of a model with random weights",
          .usage = "[--shape NAME] [--tp N] [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<BenchTrainOptions>();
            define_train(flags, *options);
            return [options] {
              library_function<decltype(cleave_bench_train)>("cleave_bench_train")(*options);
              return 0;
            };
          }};
}

Command bench_generate_command() {
  return {.name = "bench generate",
          .summary = "time prefill and decoding of a model with random weights",
          .usage = "[--shape NAME] [--tp N] [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<BenchGenerateOptions>();
            define_generate(flags, *options);
            return [options] {
              library_function<decltype(cleave_bench_generate)>("cleave_bench_generate")(*options);
              return 0;
            };
          }};
}

}  // namespace cleave::cli
