// The results of a run depend only on its command: not on the machine's load or when its ranks
// start; and on its layout only through the order of sums.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/file/file.h"
#include "tests/support/level.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"
#include "tests/support/train_program.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// Arguments of a run of the tiny model into folder/NAME.
Words train_tiny(const TempFolder& folder, const std::string& name, const Words& more) {
  std::ofstream(folder / "tiny.json") << kTinyLlama;
  Words words = train(folder / name, {"--model", folder / "tiny.json"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Keeps all CPUs busy during its lifetime.
class Load {
 public:
  Load() {
    for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
      threads_.emplace_back([this] {
        while (!ends_) {
        }
      });
    }
  }
  ~Load() {
    ends_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

 private:
  std::atomic<bool> ends_{false};
  std::vector<std::thread> threads_;
};

/// Arguments that launch processes, each after its own delay.
Words launched(const std::vector<int>& delays_ms, const Words& words) {
  std::string script = "delays=(";
  for (const int ms : delays_ms) script += str(ms / 1e3, ' ');
  script += "); sleep ${delays[$RANK]}; exec \"$0\" \"$@\"";
  Words all{"launch", "-n",   str(delays_ms.size()), "--", "/bin/bash",
            "-c",     script, test::program()};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

/// All results of a run except times: the bytes of its tensor files, and its log.
std::map<std::string, std::string> results_of(const std::string& run) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    if (entry.path().extension() != ".safetensors") continue;
    found[fs::relative(entry.path(), run)] = read_file(entry.path());
  }
  for (nlohmann::json& line : metrics_of(run)) {
    for (const char* time : {"tokens_per_s", "step_ms", "comm_ms", "peak_rss_bytes", "mfu"}) {
      line.erase(time);
    }
    found["metrics.jsonl"] += line.dump() + '\n';
  }
  return found;
}

// Row D1. Oracle: the first run of the same command, undisturbed.
TEST(Determinism, SameCommandUnderLoadAndWithLateRanks_GivesTheSameBits) {
  const std::map<size_t, Words> layouts{
      {1, {}}, {2, {"--tp", "2"}}, {4, {"--tp", "2", "--dp", "2", "--zero", "1"}}};
  const TempFolder folder;
  const auto run = [&](size_t num_ranks, const std::vector<int>& delays) {
    fs::remove_all(folder / "run");
    Words more{"--steps", "30", "--save-every", "10", "--seed", "3"};
    more.insert(more.end(), layouts.at(num_ranks).begin(), layouts.at(num_ranks).end());
    const RunResult ran = run_cleave(launched(delays, train_tiny(folder, "run", more)));
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return results_of(folder / "run");
  };
  std::map<size_t, std::map<std::string, std::string>> want;
  for (const auto& [num_ranks, layout] : layouts) {
    want[num_ranks] = run(num_ranks, std::vector<int>(num_ranks, 0));
    ASSERT_GT(want[num_ranks].size(), 3U) << "three checkpoints and the log";
  }
  const int num_runs = num_rounds(60);
  for (int i = 0; i < num_runs; ++i) {
    auto random = random_of_round(i);
    const size_t num_ranks = size_t{1} << random() % 3;
    std::vector<int> delays(num_ranks);
    for (int& delay : delays) delay = static_cast<int>(random() % 300);
    std::optional<Load> load;
    if (i % 2 == 1) load.emplace();
    EXPECT_TRUE(run(num_ranks, delays) == want[num_ranks])
        << num_ranks << " ranks; "
        << repeat_line(i, "Determinism.SameCommandUnderLoadAndWithLateRanks_GivesTheSameBits");
  }
  note_measured("D1 ", num_runs, " runs of 1, 2 and 4 ranks, half under load: the same bits");
}

/// The largest relative difference of the losses of two runs.
double largest_difference(const std::string& one, const std::string& other) {
  const auto want = metrics_of(one), got = metrics_of(other);
  EXPECT_EQ(want.size(), got.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(want.size(), got.size()); ++i) {
    const double a = want[i]["loss"], b = got[i]["loss"];
    largest = std::max(largest, std::abs(a - b) / std::abs(a));
  }
  return largest;
}

// Row D3. Oracle: the same run on one rank. The limit of fp32 is as many roundings as 1e-12 in
// fp64.
TEST(Determinism, LossesOnFourRanks_AreThoseOfOne) {
  const TempFolder folder;
  const int num_steps = level() == Level::kQuick ? 100 : 500;
  const std::map<std::string, double> limits{{"fp64", 1e-12}, {"fp32", 1e-12 * std::exp2(53 - 24)}};
  for (const auto& [type, limit] : limits) {
    const Words steps{"--steps", str(num_steps), "--dtype", type, "--lr", "3e-3"};
    Words parallel = steps;
    parallel.insert(parallel.end(), {"--tp", "2", "--dp", "2"});
    const std::string one = type + "one", four = type + "four";
    for (const auto& words : {train_tiny(folder, one, steps), train_tiny(folder, four, parallel)}) {
      const RunResult ran = run_cleave(words);
      ASSERT_EQ(ran.exit_code, 0) << ran.err;
    }
    const double difference = largest_difference(folder / one, folder / four);
    EXPECT_LE(difference, limit) << type;
    note_measured("D3 ", num_steps, " steps in ", type, ": losses differ by at most ", difference);
  }
}

}  // namespace
}  // namespace cleave::test
