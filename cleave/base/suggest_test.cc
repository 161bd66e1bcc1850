#include "cleave/base/suggest.h"

#include <gtest/gtest.h>

namespace cleave::suggest_test {
namespace {

TEST(EditDistance, TextbookPairs_GiveKnownDistances) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("sunday", "saturday"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("ab", "ba"), 2u);
}

TEST(NearestNames, TypingMistake_GivesTheIntendedNameFirst) {
  const std::vector<std::string> names = {"steps", "batch_size", "seq_len", "save_every", "seed"};
  EXPECT_EQ(nearest_names("batchsize", names, 1), std::vector<std::string>{"batch_size"});
  EXPECT_EQ(nearest_names("see", names, 2), (std::vector<std::string>{"seed", "steps"}));
  EXPECT_EQ(nearest_names("x", names, 9).size(), names.size());
}

TEST(LikelyName, NameThatDiffersInMoreThanTwoFifths_IsNotSuggested) {
  const std::vector<std::string> names = {"train", "eval", "plan"};
  EXPECT_EQ(likely_name("trian", names), "train");
  EXPECT_EQ(likely_name("evil", names), "eval");
  EXPECT_EQ(likely_name("plans", names), "plan");
  EXPECT_EQ(likely_name("nope", names), std::nullopt);
  EXPECT_EQ(likely_name("even", names), std::nullopt);  // 2 letters of 4
  EXPECT_EQ(likely_name("x", {}), std::nullopt);
}

TEST(LikelyName, StartOfOneName_GivesIt) {
  const std::vector<std::string> names = {"keep-last", "max-new-tokens", "max-shard-size"};
  EXPECT_EQ(likely_name("keep", names), "keep-last");
  EXPECT_EQ(likely_name("max-s", names), "max-shard-size");
  EXPECT_EQ(likely_name("max", names), std::nullopt);
  EXPECT_EQ(likely_name("ke", names), std::nullopt);
  EXPECT_EQ(likely_name("last", names), std::nullopt);
}

TEST(DidYouMean, ThreeTwoOneNone_ReadsAsASentence) {
  const std::vector<std::string> names = {"aa", "ab", "zzz", "zzzz"};
  EXPECT_EQ(did_you_mean("aa", names), "; did you mean 'aa', 'ab' or 'zzz'");
  EXPECT_EQ(did_you_mean("aa", std::span(names).first(2)), "; did you mean 'aa' or 'ab'");
  EXPECT_EQ(did_you_mean("aa", std::span(names).first(1)), "; did you mean 'aa'");
  EXPECT_EQ(did_you_mean("aa", {}), "");
}

TEST(DidYouMean, EmptyNames_AreNotSuggested) {
  const std::vector<std::string> names = {"", "b", ""};
  EXPECT_EQ(did_you_mean("a", names), "; did you mean 'b'");
  EXPECT_EQ(did_you_mean("a", std::span(names).first(1)), "");
  EXPECT_EQ(likely_name("", names), std::nullopt);
}

}  // namespace
}  // namespace cleave::suggest_test
