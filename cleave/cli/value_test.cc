#include "cleave/cli/value.h"

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "tests/support/thrown.h"

namespace cleave::value_test {
namespace {

using cli::Arity;
using cli::ConfigEntry;
using test::thrown_by;

/// A row of --x.
template <class Values>
option::Row row_of(const option::Target& target, const Values& values) {
  return {target, "x", "N", "", "", values};
}

/// The error of reading `text` into a variable of the type Number.
template <class Number>
std::string refusal(const std::string& text, const option::Limits& limits) {
  Number value{};
  const option::Row row = row_of(&value, limits);
  const Error error = thrown_by([&] { cli::read_values("--x", {text}, row); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_EQ(value, Number{}) << "a refused value is not stored";
  return error.what();
}

TEST(Values, NumbersAtTheirLimits_AreStored) {
  int64_t whole = 0;
  double share = 0;
  uint64_t seed = 0;
  const option::Row steps = row_of(&whole, option::kSteps);
  for (const int64_t value : {int64_t{0}, int64_t{1'000'000'000}}) {
    cli::read_values("--x", {std::to_string(value)}, steps);
    EXPECT_EQ(whole, value);
  }
  cli::read_values("--x", {"1", "2", "3"}, steps);
  EXPECT_EQ(whole, 3) << "the last one counts";
  cli::read_values("--x", {"2.5e-1"}, row_of(&share, option::Limits{.low = 0, .high = 1}));
  EXPECT_EQ(share, 0.25);
  cli::read_values("--x", {"18446744073709551615"}, row_of(&seed, option::kSeeds));
  EXPECT_EQ(seed, 18446744073709551615U);
}

TEST(Values, NumbersBeyondTheirLimits_AreRefusedWithTheRange) {
  const std::string whole = "; expected an integer from 1 to 4096";
  for (const std::string text :
       {"0", "4097", "-1", "1.5", "x", "", " 1", "1 ", "0x2", "1e3", "99999999999999999999"}) {
    EXPECT_EQ(refusal<int64_t>(text, option::kRanks), "--x is '" + text + "'" + whole);
  }
  const option::Limits open{.low = 0, .high = 1, .takes_low = false, .takes_high = false};
  for (const std::string text : {"0", "1", "nan", "inf", "-1e-9", "1.0000001"}) {
    EXPECT_EQ(refusal<double>(text, open),
              "--x is '" + text + "'; expected a number above 0 and below 1");
  }
  EXPECT_EQ(refusal<int64_t>("1000000001", option::kSteps),
            "--x is '1000000001'; expected an integer from 0 to 1000000000");
}

TEST(Values, ListsOfNumbers_AreReadBetweenCommas) {
  std::array<double, 2> betas{};
  const option::Row pair = row_of(&betas, option::Limits{.low = 0, .high = 1});
  cli::read_values("--x", {"0.5, 0.25"}, pair);
  EXPECT_EQ(betas, (std::array<double, 2>{0.5, 0.25}));
  EXPECT_THROW(cli::read_values("--x", {"0.5"}, pair), Error);
  EXPECT_THROW(cli::read_values("--x", {"0.5,0.25,0.1"}, pair), Error);
  EXPECT_THROW(cli::read_values("--x", {"0.5,"}, pair), Error);
  EXPECT_EQ(betas, (std::array<double, 2>{0.5, 0.25}));
  std::vector<std::vector<int64_t>> ids;
  cli::read_values("--x", {"1,2", "3"}, row_of(&ids, option::kTokens));
  EXPECT_EQ(ids, (std::vector<std::vector<int64_t>>{{1, 2}, {3}}));
}

TEST(Values, AWordThatIsNoChoice_IsRefusedWithTheChoices) {
  std::string word = "first";
  const option::Row row = row_of(&word, option::Choices{"first", "second"});
  cli::read_values("--x", {"second"}, row);
  EXPECT_EQ(word, "second");
  const Error error = thrown_by([&] { cli::read_values("--x", {"Second"}, row); });
  EXPECT_STREQ(error.what(), "--x is 'Second'; expected one of first, second");
}

std::vector<std::string> values_of(const std::string& json, Arity arity, bool is_opposite = false) {
  return cli::config_values(ConfigEntry{"x", "x", Json::parse(json, "run.json")}, arity,
                            is_opposite);
}

TEST(Values, ConfigEntries_AreTheWordsOfTheCommandLine) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(values_of("true", Arity::kSwitch), Words{"true"});
  EXPECT_EQ(values_of("true", Arity::kSwitch, /*is_opposite=*/true), Words{"false"});
  EXPECT_EQ(values_of("0.5", Arity::kOne), Words{"0.5"});
  EXPECT_EQ(values_of("[0.5, 0.25]", Arity::kOne), Words{"0.5,0.25"});
  EXPECT_EQ(values_of(R"(["a", "b"])", Arity::kMany), (Words{"a", "b"}));
  EXPECT_EQ(values_of("[1, 2]", Arity::kRows), Words{"1,2"});
  EXPECT_EQ(values_of("[[1, 2], [3]]", Arity::kRows), (Words{"1,2", "3"}));
  for (const char* bad : {"[]", "{}", "null", "[{}]"}) {
    EXPECT_THROW(values_of(bad, Arity::kEach), Error) << bad;
  }
}

}  // namespace
}  // namespace cleave::value_test
