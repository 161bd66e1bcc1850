#pragma once
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <string_view>

#include "cleave/base/str.h"

namespace cleave::test {

/// How much a run of the tests is to find: CLEAVE_TEST_LEVEL, as ./run test sets it.
enum class Level { kQuick, kFull, kRelease };

inline Level level() {
  const char* text = std::getenv("CLEAVE_TEST_LEVEL");  // NOLINT(concurrency-mt-unsafe)
  const std::string_view named = text == nullptr ? "" : text;
  if (named == "release") return Level::kRelease;
  return named == "full" ? Level::kFull : Level::kQuick;
}

/// How often a fault is tried: 5 times, 20 in ./run test --full, `release` in ./run test --release.
inline int num_rounds(int release) {
  if (level() == Level::kRelease) return release;
  return level() == Level::kFull ? 20 : 5;
}

/// Random numbers of one round of one test: the seed is CLEAVE_TEST_SEED plus the round.
inline std::mt19937_64 random_of_round(int round) {
  const char* text = std::getenv("CLEAVE_TEST_SEED");  // NOLINT(concurrency-mt-unsafe)
  const uint64_t seed = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  return std::mt19937_64(seed + static_cast<uint64_t>(round));
}

/// What repeats one round, for failure messages.
inline std::string repeat_line(int round, std::string_view test) {
  const char* text = std::getenv("CLEAVE_TEST_SEED");  // NOLINT(concurrency-mt-unsafe)
  const uint64_t seed = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  return str("to repeat: CLEAVE_TEST_SEED=", seed + static_cast<uint64_t>(round),
             " --gtest_filter=", test);
}

/// A number for docs/reliability.md, in the test's output.
template <class... Parts>
void note_measured(const Parts&... parts) {
  std::cout << str("measured: ", parts..., "\n") << std::flush;
}

}  // namespace cleave::test
