#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cleave::test {

/// Lines of a run's metrics.jsonl.
inline std::vector<nlohmann::json> metrics_of(const std::string& run) {
  std::vector<nlohmann::json> out;
  std::ifstream file(run + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

/// The words of a small `cleave train` whose results do not depend on the machine's cores.
inline std::vector<std::string> train(const std::string& out,
                                      const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"train",
                                 "--data",
                                 CLEAVE_SOURCE_DIR "/LICENSE",
                                 "--out",
                                 out,
                                 "--seq-len",
                                 "32",
                                 "--batch-size",
                                 "4",
                                 "--gemm",
                                 "mkl",
                                 "--threads-per-rank",
                                 "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace cleave::test
