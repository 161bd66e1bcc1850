#include <memory>

#include "cleave/bench/options.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"

namespace cleave::cli {
namespace {

void define_train(Flags& flags, BenchTrainOptions& options) {
  flags.group("what is timed");
  flags.choice(&options.shape, {"shape", "", "sizes of a model with random weights"},
               {"llama-135m", "gpt2-124m", "bert-base"});
  flags.add(&options.batch_size, {"batch-size", "N", "sequences a step"}, kPositive);
  flags.add(&options.seq_len, {"seq-len", "N", "tokens of a sequence", "256, 64 or 128 by shape"},
            kPositive);
  flags.add(&options.steps, {"steps", "N", "steps that are timed; their median counts"}, kPositive);
  flags.add(&options.warmup, {"warmup", "N", "steps before them"}, kNotNegative);
  flags.group("ranks");
  flags.add(&options.tp, tp_text(), kPositive);
  flags.choice(&options.dtype, {"dtype", "", "of forward and backward"}, {"fp32", "bf16", "fp64"});
  flags.add(&options.threads_per_rank,
            {"threads-per-rank", "N", "threads of a rank's kernels", "cores / tp"}, kPositive);
  flags.choice(&options.gemm, {"gemm", "", "library of fp32 matrix products"},
               {"auto", "mkl", "onednn"});
  flags.group("output");
  flags.add(&options.operations, {"operations", "N", "list the N longest operations", "off"},
            kPositive);
  flags.toggle(&options.json, {"json", "", "one line of JSON", "off"});
}

}  // namespace

Command bench_command() {
  return {.name = "bench",
          .summary = "time training, generation and collectives on this machine",
          .usage = "[flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<BenchTrainOptions>();
            define_train(flags, *options);
            return [options] {
              library_function<decltype(cleave_bench_train)>("cleave_bench_train")(*options);
              return 0;
            };
          }};
}

}  // namespace cleave::cli
