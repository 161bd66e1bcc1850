#pragma once
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/str.h"

namespace cleave::test {

/// Whether this is a build with a sanitizer, whose times and memory are not representative.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsInstrumented = true;
#else
inline constexpr bool kIsInstrumented = false;
#endif

/// How thorough the tests are: CLEAVE_TEST_LEVEL, which ./run test sets.
enum class Level { kQuick, kFull, kRelease, kSoak };

inline Level level() {
  const char* text = std::getenv("CLEAVE_TEST_LEVEL");  // NOLINT(concurrency-mt-unsafe)
  const std::string_view named = text == nullptr ? "" : text;
  if (named == "release") return Level::kRelease;
  if (named == "soak") return Level::kSoak;
  return named == "full" ? Level::kFull : Level::kQuick;
}

/// Repetitions of a fault: 5, in ./run test --full 20, in ./run test --release `release`.
inline int num_rounds(int release) {
  if (level() == Level::kRelease) return release;
  return level() == Level::kFull ? 20 : 5;
}

/// Random numbers of one round of a test: the seed is CLEAVE_TEST_SEED plus the round.
inline std::mt19937_64 random_of_round(int round) {
  const char* text = std::getenv("CLEAVE_TEST_SEED");  // NOLINT(concurrency-mt-unsafe)
  const uint64_t seed = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  return std::mt19937_64(seed + static_cast<uint64_t>(round));
}

/// Command that repeats one round, for failure messages.
inline std::string repeat_line(int round, std::string_view test) {
  const char* text = std::getenv("CLEAVE_TEST_SEED");  // NOLINT(concurrency-mt-unsafe)
  const uint64_t seed = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  return str("to repeat: CLEAVE_TEST_SEED=", seed + static_cast<uint64_t>(round),
             " --gtest_filter=", test);
}

inline double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  const auto now = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::milli>(now - begin).count();
}

/// A time limit, ten times longer in builds with a sanitizer.
inline double limit_ms(double ms) {
  return kIsInstrumented ? 10 * ms : ms;
}

/// Times of repeated measurements against a limit. Of 100 or more, 1 % may exceed it; of fewer,
/// half: a busy machine delays random ones.
class Times {
 public:
  void add(double ms) { all_.push_back(ms); }
  [[nodiscard]] double longest() const { return *std::max_element(all_.begin(), all_.end()); }
  /// The percentile that must be below the limit; 0 in a build with a sanitizer.
  [[nodiscard]] double judged() const {
    if (kIsInstrumented) return 0;
    std::vector<double> sorted = all_;
    std::sort(sorted.begin(), sorted.end());
    const size_t n = sorted.size();
    return sorted[n >= 100 ? n - 1 - n / 100 : (n - 1) / 2];
  }
  /// "median 3 ms, longest 26 ms".
  [[nodiscard]] std::string text() const {
    std::vector<double> sorted = all_;
    std::sort(sorted.begin(), sorted.end());
    std::ostringstream out;
    out << std::setprecision(3) << "median " << sorted[(sorted.size() - 1) / 2] << " ms, longest "
        << sorted.back() << " ms";
    return out.str();
  }

 private:
  std::vector<double> all_;
};

/// A number for docs/design/reliability-notes.md, in the test's output.
template <class... Parts>
void note_measured(const Parts&... parts) {
  std::cout << str("measured: ", parts..., "\n") << std::flush;
}

}  // namespace cleave::test
