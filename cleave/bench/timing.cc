#include "cleave/bench/timing.h"

#include <cstdio>
#include <numeric>

namespace cleave::inline bench {

Spent spent_of(const OpClock& clock) {
  return {.kinds = clock.seconds(), .operations = clock.operations(), .products = clock.products()};
}

nlohmann::ordered_json shares_of(const Spent& spent) {
  const double all = std::accumulate(spent.kinds.begin(), spent.kinds.end(), 0.0);
  nlohmann::ordered_json shares;
  for (int k = 0; k < kNumTimeKinds; ++k) {
    shares[std::string(name(static_cast<TimeKind>(k)))] = spent.kinds[static_cast<size_t>(k)] / all;
  }
  return shares;
}

namespace {

/// The `count` slowest operations, with the time and calls per run of `times` runs.
nlohmann::ordered_json operations_of(const Spent& spent, int64_t count, int64_t times) {
  auto operations = nlohmann::ordered_json::array();
  for (const OpTime& op : spent.operations) {
    if (static_cast<int64_t>(operations.size()) == count) break;
    operations.push_back({{"name", op.name},
                          {"ms", op.seconds / static_cast<double>(times) * 1e3},
                          {"calls", static_cast<double>(op.calls) / static_cast<double>(times)}});
  }
  return operations;
}

}  // namespace

void print_bench(const BenchOptions& options, nlohmann::ordered_json result,
                 const std::string& headline, const Spent& spent, int64_t times) {
  if (options.operations > 0) {
    result["operations"] = operations_of(spent, options.operations, times);
  }
  if (options.json) {
    std::printf("%s\n", result.dump().c_str());
    return;
  }
  std::printf("%s\n", headline.c_str());
  for (const auto& [kind, share] : result["share"].items()) {
    std::printf("  %-16s %5.1f %%\n", kind.c_str(), share.get<double>() * 100);
  }
  if (options.operations == 0) return;
  std::printf("%-44s %12s %12s\n", "operation (rank 0)", "ms per run", "calls");
  for (const auto& op : result["operations"]) {
    std::printf("%-44s %12.3f %12.1f\n", op["name"].get_ref<const std::string&>().c_str(),
                op["ms"].get<double>(), op["calls"].get<double>());
  }
}

}  // namespace cleave::inline bench
