#include "cleave/bench/timing.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <sys/resource.h>

namespace cleave {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

nlohmann::ordered_json shares_of(const Spent& spent) {
  const double all = std::accumulate(spent.kinds.begin(), spent.kinds.end(), 0.0);
  nlohmann::ordered_json shares;
  for (int k = 0; k < kNumTimeKinds; ++k) {
    shares[std::string(name(static_cast<TimeKind>(k)))] = spent.kinds[static_cast<size_t>(k)] / all;
  }
  return shares;
}

void print_bench(const BenchOptions& options, const nlohmann::ordered_json& result,
                 const std::string& headline, const Spent& spent, int64_t times) {
  if (options.json) {
    std::printf("%s\n", result.dump().c_str());
    return;
  }
  std::printf("%s\n", headline.c_str());
  for (const auto& [kind, share] : result["share"].items()) {
    std::printf("  %-16s %5.1f %%\n", kind.c_str(), share.get<double>() * 100);
  }
  if (options.operations == 0) return;
  std::printf("%-44s %12s %12s\n", "operation (rank 0)", "ms each time", "calls");
  const auto count =
      std::min<size_t>(static_cast<size_t>(options.operations), spent.operations.size());
  for (size_t i = 0; i < count; ++i) {
    const OpTime& op = spent.operations[i];
    std::printf("%-44s %12.3f %12.1f\n", op.name.c_str(),
                op.seconds / static_cast<double>(times) * 1e3,
                static_cast<double>(op.calls) / static_cast<double>(times));
  }
}

}  // namespace cleave
