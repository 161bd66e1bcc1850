// Small runs of `cleave bench train` and `cleave bench generate` as processes under the launcher.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace cleave::test {
namespace {

using Words = std::vector<std::string>;

nlohmann::json one_result(const std::string& kind, const Words& more) {
  Words words{"launch", "-n",   "2", "--",     test::program(), "bench",
              kind,     "--tp", "2", "--json", "--operations",  "3"};
  words.insert(words.end(), more.begin(), more.end());
  const RunResult ran = run_cleave(words);
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << ran.out;
  const auto result = nlohmann::json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_EQ(result["bench"], kind);
  EXPECT_EQ(result["tp"], 2);
  EXPECT_EQ(result["operations"].size(), 3U);
  return result;
}

TEST(BenchProgram, TrainingUnderALauncher_IsReportedOnce) {
  const auto result = one_result("train", {"--shape", "bert-base", "--batch-size", "1", "--seq-len",
                                           "4", "--steps", "1", "--warmup", "0"});
  for (const char* key : {"limit_ms", "share_of_limit", "best_flops_per_rank", "all_reduce_us"}) {
    EXPECT_GT(result[key].get<double>(), 0) << key;
  }
}

TEST(BenchProgram, GeneratingUnderALauncher_IsReportedOnce) {
  const auto result =
      one_result("generate", {"--prompt-len", "1", "--new-tokens", "1", "--repeats", "1"});
  // Twelve layers with four matrices each, and the embedding of 50257 tokens, in fp32.
  EXPECT_EQ(result["matrix_bytes"], 4 * 768 * (12 * (3 + 1 + 4 + 4) * 768 + 50257));
  EXPECT_GT(result["matrix_gb_per_s"], 0);
  for (const char* key : {"memory_gb_per_s", "decode_share_of_limit", "prefill_share_of_limit"}) {
    EXPECT_GT(result[key].get<double>(), 0) << key;
  }
}

}  // namespace
}  // namespace cleave::test
