// Extreme values of every numeric flag of every command. Accepted values reach a library that only
// prints the options that it receives (fake_library.cc).
#include <algorithm>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/e2e/fake_program.h"
#include "tests/support/level.h"

namespace cleave::test {
namespace {

using Words = std::vector<std::string>;

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The commands that `cleave --help` lists: "train", "bench train".
Words commands() {
  const std::regex entry("^  ([a-z]+(?: [a-z]+)?)  +[^ ].*");
  Words found;
  for (const std::string& line : lines_of(run_fake({"--help"}).out)) {
    std::smatch match;
    if (std::regex_match(line, match, entry)) found.push_back(match[1]);
  }
  return found;
}

Words words_of(const std::string& command) {
  Words words;
  std::istringstream stream(command);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

RunResult run_with(const std::string& command, const Words& more) {
  Words words = words_of(command);
  words.insert(words.end(), more.begin(), more.end());
  return run_fake(words);
}

/// A flag that expects a number, and the range that its refusal states.
struct NumberFlag {
  std::string command, flag, range;
};

/// The flags of a command that refuse "x" because they expect a number. The range is empty if a
/// flag has none.
std::vector<NumberFlag> number_flags_of(const std::string& command) {
  const std::regex entry("^ +(--?[a-z-]+) [^ ].*");
  const std::regex refusal(".*; expected (?:a number|an integer)(.*)\n");
  std::vector<NumberFlag> found;
  for (const std::string& line : lines_of(run_with(command, {"--help"}).out)) {
    std::smatch match;
    if (!std::regex_match(line, match, entry)) continue;
    const std::string flag = match[1];
    const RunResult ran = run_with(command, {flag, "x"});
    std::smatch refused;
    if (std::regex_match(ran.err, refused, refusal)) found.push_back({command, flag, refused[1]});
  }
  return found;
}

std::vector<NumberFlag> all_number_flags() {
  std::vector<NumberFlag> all;
  for (const std::string& command : commands()) {
    const auto own = number_flags_of(command);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

/// Expects a refusal in one line with flag, value and range.
void expect_refused(const NumberFlag& f, const std::string& value, const RunResult& ran) {
  EXPECT_EQ(ran.exit_code, 2) << f.command << ' ' << f.flag << ' ' << value;
  const std::string begin = "cleave: " + f.flag + " is '" + value + "'; expected ";
  // --adam-betas needs two numbers and refuses one.
  const bool ends_well =
      ran.err.ends_with(f.range + "\n") || ran.err == begin + "two numbers, as in 0.9,0.95\n";
  EXPECT_TRUE(ran.err.starts_with(begin) && ends_well) << ran.err;
}

TEST(NumberFlags, ExtremeValues_AreRefusedOrFit) {
  const auto flags = all_number_flags();
  EXPECT_GT(flags.size(), 60U);  // the help was parsed
  const std::regex has_both_ends(
      "( from | above )[-+0-9.e]+( to | and up to | and below )[-+0-9.e]+");
  for (const NumberFlag& f : flags) {
    EXPECT_TRUE(std::regex_match(f.range, has_both_ends)) << f.command << ' ' << f.flag << f.range;
    for (const std::string value : {"1e308", "nan", "inf"}) {
      expect_refused(f, value, run_with(f.command, {f.flag, value}));
    }
    for (const std::string value :
         {"0", "-1", "1e-40", "2147483648", "9223372036854775807", "18446744073709551616"}) {
      const RunResult ran = run_with(f.command, {f.flag, value});
      const bool is_refused = ran.err.find(f.flag + " is '") != std::string::npos;
      if (is_refused) expect_refused(f, value, ran);
      // Seeds may be any unsigned 64-bit integer; no other number is that large.
      const bool is_seed = f.flag == "--seed" && value.size() < 20;
      EXPECT_TRUE(is_refused || value.size() < 10 || is_seed) << f.command << ' ' << f.flag;
      EXPECT_LT(ran.seconds, kIsInstrumented ? 30 : 5)
          << f.command << ' ' << f.flag << ' ' << value;
      EXPECT_LT(ran.exit_code, 128) << "ended by a signal: " << f.command << ' ' << f.flag;
      EXPECT_NE(ran.exit_code, 70) << ran.err;
    }
  }
}

TEST(NumberFlags, SmallestAndLargest_AreTaken) {
  const auto taken = [](const std::string& flag, const std::string& value) {
    return received_options(
        {"generate", "--model", ".", "--prompt", "a", flag, value})[flag.substr(2)];
  };
  EXPECT_EQ(taken("--num-beams", "1024"), 1024);
  EXPECT_EQ(taken("--temperature", "1e-6"), 1e-6);
  EXPECT_EQ(taken("--temperature", "1000000"), 1e6);
  EXPECT_EQ(taken("--length-penalty", "-100"), -100);
  EXPECT_EQ(taken("--threads-per-rank", "1024"), 1024);
  EXPECT_EQ(taken("--seed", "18446744073709551615"), UINT64_MAX);
}

}  // namespace
}  // namespace cleave::test
