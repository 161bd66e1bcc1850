#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/mesh/machine_options.h"

namespace cleave::inline verify {

/// Options of `cleave verify`. Free of libtorch.
struct VerifyOptions : MachineOptions {
  std::string model;   ///< preset, or folder of a model or of a run
  std::string plan{};  ///< JSON file; empty = the model's
  bool sequence_parallel = false;
  int tp = 0;  ///< 0 = 2, or ranks of the launcher / dp
  int dp = 1;
  int ep = 1;           ///< data-parallel ranks that share out the experts
  std::string layer{};  ///< pattern of paths of the layers to run; empty = all
  int64_t fuzz = 0;     ///< number of random configurations to verify instead; 0 = off
  std::string dtype{};  ///< empty = that of the folder, else fp32
  uint64_t seed = 0;
  bool json = false;
};

}  // namespace cleave::inline verify

namespace cleave::option {

/// The options of `cleave verify`.
inline std::vector<Section> sections(VerifyOptions& o) {
  return {
      {"comparison",
       {{&o.model, "model", "NAME|DIR|JSON", "preset, model or run folder, or a config.json",
         "required"},
        {&o.layer,
         "layer",
         "NAME",
         "run only these layers and the layers in them, each by itself; * and {a,b} as in plans",
         "all",
         {},
         kMustMatch},
        {&o.fuzz, "fuzz", "N", "instead compare N random small configurations of the model", "off",
         Limits{1, 1e6}},
        {&o.seed, "seed", "N", "seed of weights, token ids and configurations", "", kSeeds,
         kMustMatch},
        {&o.json, "json", "", "print one JSON object", "off"}}},
      {"ranks",
       joined({{&o.tp, "tp", "N", "tensor-parallel ranks; with --fuzz at most N",
                "2; under a launcher all remaining ranks", kRanks, kMustMatch},
               {&o.dp, "dp", "N", "data-parallel ranks", "", kRanks, kMustMatch},
               data_expert_parallel(&o.ep, kMustMatch),
               plan(&o.plan),
               {&o.sequence_parallel,
                "sequence-parallel",
                "",
                "use the model's sequence-parallel plan",
                "off",
                {},
                kMustMatch},
               {&o.dtype, "dtype", "", "dtype of the sharded model; one rank is always fp64",
                "the model's, else fp32", Choices{"fp32", "bf16", "fp16", "fp64"}, kMustMatch}},
              rows(o))}};
}

}  // namespace cleave::option

/// The front end finds this symbol in libcleave by name. Prints to stdout and returns the exit
/// code: 0 if the sharded model matches the model on one rank, else 9. Throws Error.
extern "C" int cleave_verify(const cleave::VerifyOptions& options);
