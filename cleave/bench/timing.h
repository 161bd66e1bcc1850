#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cleave/bench/options.h"
#include "cleave/kernels/op_clock.h"

namespace cleave {

/// Where rank 0's time went while its steps were timed.
struct Spent {
  std::array<double, kNumTimeKinds> kinds{};  ///< seconds
  std::vector<OpTime> operations;
};

/// Of an odd number of values the middle one, of an even number the mean of the two.
double median(std::vector<double> values);

/// Most memory that this process ever held, in bytes.
int64_t peak_rss_bytes();

/// {"matrix products": 0.8, ...}: shares of the time.
nlohmann::ordered_json shares_of(const Spent& spent);

/// One line of JSON, or for people `headline`, the shares and the longest operations, which ran
/// `times` times.
void print_bench(const BenchOptions& options, const nlohmann::ordered_json& result,
                 const std::string& headline, const Spent& spent, int64_t times);

}  // namespace cleave
