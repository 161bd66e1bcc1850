#pragma once
#include <cstdint>

#include "cleave/text/json.h"

namespace cleave::inline verify {

/// A small random variant of a configuration, with a layout.
struct FuzzCase {
  Json config;
  int tp = 1;
  bool sequence_parallel = false;
};

/// The case of a seed, a pure function of the arguments. Varies those of these keys that `config`
/// has: layers, heads (at least tp), key/value heads, widths, vocabulary (also not divisible by or
/// smaller than tp), biases and tied weights, if the model's family has them. tp is from 1 to
/// `most_tp`.
FuzzCase fuzz_case(const Json& config, int most_tp, uint64_t seed);

/// "tp 3, num_hidden_layers 2, ...": the varied keys and their values on one line.
std::string describe(const FuzzCase& fuzz_case);

}  // namespace cleave::inline verify
