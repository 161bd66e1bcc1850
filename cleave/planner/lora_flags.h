#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/option.h"

namespace cleave::inline planner {

/// The flags for adapters, which are trained instead of the weights. This header does not include
/// libtorch.
struct LoraFlags {
  int64_t lora = 0;                       ///< rank of trained adapters; 0 = all weights are trained
  double lora_alpha = 0;                  ///< 0 = 2 x rank
  std::vector<std::string> lora_targets;  ///< empty = all-linear
  double lora_dropout = 0;                ///< of the adapters' input
  std::string lora_base = "dtype";        ///< form of the frozen weights
  bool rslora = false;                    ///< scale adapters by alpha / sqrt(rank)
  bool dora = false;                      ///< adapters with magnitudes
};

}  // namespace cleave::inline planner

namespace cleave::option {

/// The options of LoraFlags.
inline std::vector<Row> rows(LoraFlags& o) {
  return {
      {&o.lora, "lora", "RANK", "train adapters of this rank (LoRA) and freeze the weights", "off",
       Limits{1, 65536}, kMustMatch},
      {&o.lora_alpha, "lora-alpha", "X", "adapters are scaled by X / RANK", "2 x RANK",
       Limits{.low = 0, .high = 1e6, .takes_low = false}, kMustMatch},
      {&o.lora_targets,
       "lora-targets",
       "NAMES",
       "linear layers with an adapter, by the ends of their paths (q_proj,v_proj), or all-linear "
       "for all linear layers of the blocks",
       "all-linear",
       {},
       kMustMatch},
      {&o.lora_dropout, "lora-dropout", "P", "dropout of the adapters' input while training", "",
       Limits{.low = 0, .high = 1, .takes_high = false}, kMustMatch},
      {&o.lora_base, "lora-base", "",
       "frozen weights of the blocks' linear layers: in --dtype, in int8 with a scale for each "
       "output, or in nf4 (4 bits, as QLoRA) with one for each 64 inputs of an output",
       "", Choices{"dtype", "int8", "nf4"}, kMustMatch},
      {&o.rslora, "rslora", "", "scale adapters by X / sqrt(RANK)", "off", {}, kMustMatch},
      {&o.dora,
       "dora",
       "",
       "also train a magnitude for each row of the sum of weight and adapter (DoRA)",
       "off",
       {},
       kMustMatch}};
}

}  // namespace cleave::option
