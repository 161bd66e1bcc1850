#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "cleave/report/replay.h"

namespace cleave::inline report {

/// Gives each different value a number, from 0 on.
class Numbering {
 public:
  /// The number of `value`: a new one, or that of an equal value before.
  size_t index(const nlohmann::ordered_json& value) {
    const auto [at, is_new] = indices_.emplace(value.dump(), values_.size());
    if (is_new) values_.push_back(value);
    return at->second;
  }
  /// The values in the order of their numbers.
  [[nodiscard]] const nlohmann::ordered_json& values() const { return values_; }

 private:
  std::map<std::string, size_t> indices_;
  nlohmann::ordered_json values_ = nlohmann::ordered_json::array();
};

/// What the page and the trace of a recorded step both have, besides the events: totals, forecast,
/// and the weights of each rank.
nlohmann::ordered_json summary_json(const Replay& replay);

/// Nanoseconds, as a whole number.
int64_t nanoseconds(double seconds);

}  // namespace cleave::inline report
