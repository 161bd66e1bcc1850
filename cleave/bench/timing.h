#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cleave/bench/options.h"
#include "cleave/kernels/op_clock.h"

namespace cleave {

/// Where rank 0's time went: in the steps that were timed, or for generation in one run more.
struct Spent {
  std::array<double, kNumTimeKinds> kinds{};  ///< seconds
  std::vector<OpTime> operations;
};

/// Of an odd number of values the middle one, of an even number the mean of the two.
double median(std::vector<double> values);

/// {"matrix products": 0.8, ...}: shares of the time.
nlohmann::ordered_json shares_of(const Spent& spent);

/// `result` as one line of JSON, or for people `headline` and the shares; both with the longest
/// operations where options.operations asks for them. `spent` is of `times` runs, and what is
/// printed of an operation of one.
void print_bench(const BenchOptions& options, nlohmann::ordered_json result,
                 const std::string& headline, const Spent& spent, int64_t times);

}  // namespace cleave
