#pragma once
#include <cstdint>

#include "cleave/text/json.h"

namespace cleave {

/// A random small relative of a configuration, and how it is split.
struct FuzzCase {
  Json config;
  int tp = 1;
  bool sequence_parallel = false;
};

/// The case of a seed: a function of its arguments. Of config.json's usual keys, those that
/// `config` has get other values: layers, heads (at least tp), key/value heads, widths, vocabulary
/// (uneven ones, and narrower than tp), biases and tied weights. tp is from 1 to `most_tp`.
FuzzCase fuzz_case(const Json& config, int most_tp, uint64_t seed);

/// "tp 3, 2 layers, ...": the varied keys and their values, on one line.
std::string describe(const FuzzCase& fuzz_case);

}  // namespace cleave
