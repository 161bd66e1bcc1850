// Small runs of `cleave bench`.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
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

TEST(BenchCollectives, ThreadsAndProcesses_PrintALineForEachOpAndSize) {
  for (const char* ranks : {"threads", "processes"}) {
    const RunResult ran =
        run_cleave({"bench", "collectives", "--ranks", ranks, "--op", "all", "--bytes", "1KiB,300",
                    "--dtype", "bf16", "--seconds", "0.0001", "--json"});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    std::istringstream lines(ran.out);
    std::vector<std::string> seen;
    for (std::string line; std::getline(lines, line);) {
      const auto result = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      seen.push_back(result.value("op", "") + ' ' + std::to_string(result.value("bytes", -1)));
      EXPECT_EQ(result.value("ranks", ""), ranks);
      EXPECT_EQ(result.value("world", 0), 2);
      EXPECT_GT(result.value("median_us", 0.0), 0.0) << line;
    }
    const std::vector<std::string> want = {
        "all-reduce 1024",     "all-reduce 300",     "all-gather 1024", "all-gather 300",
        "reduce-scatter 1024", "reduce-scatter 300", "all-to-all 1024", "all-to-all 300",
        "broadcast 1024",      "broadcast 300",      "barrier 0"};
    EXPECT_EQ(seen, want) << ranks;
  }
}

TEST(BenchCollectives, WrongWords_NameWhatIsAllowed) {
  EXPECT_EQ(run_cleave({"bench"}).err.rfind("cleave: cleave bench needs a subcommand: ", 0), 0U);
  EXPECT_EQ(run_cleave({"bench", "colectives"}).exit_code, 2);
  EXPECT_EQ(run_cleave({"bench", "collectives", "--bytes", "4KiB,few"}).err,
            "cleave: --bytes has 'few'; expected comma-separated sizes such as 4KiB,1MiB\n");
  EXPECT_EQ(run_cleave({"bench", "collectives", "now"}).err,
            "cleave: unexpected word 'now'; see cleave bench collectives --help\n");
  EXPECT_EQ(run_cleave({"launch", "-n", "2", "--", test::program(), "bench", "collectives",
                        "--world", "3"})
                .exit_code,
            3);
}

}  // namespace
}  // namespace cleave::test
