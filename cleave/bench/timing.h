#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cleave/bench/options.h"
#include "cleave/torch_internals/op_clock.h"

namespace cleave {

/// The time of rank 0 by kind and operation: of the timed steps, or of one profiled generation run.
struct Spent {
  std::array<double, kNumTimeKinds> kinds{};  ///< seconds
  std::vector<OpTime> operations;
};

/// The fraction of time by kind: {"matrix products": 0.8, ...}.
nlohmann::ordered_json shares_of(const Spent& spent);

/// Prints `result` as one line of JSON, or `headline` and the shares as text; both with the
/// options.operations slowest operations. `spent` is the sum over `times` runs; operations are
/// printed per run.
void print_bench(const BenchOptions& options, nlohmann::ordered_json result,
                 const std::string& headline, const Spent& spent, int64_t times);

}  // namespace cleave
