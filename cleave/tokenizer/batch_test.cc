#include "cleave/tokenizer/batch.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace cleave {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kTexts{"abcdef", "x"};

TEST(Batch, Rows_ArePaddedOnTheSideAsked) {
  const auto tokenizer = byte_tokenizer();
  BatchOptions options{
      .padding = Padding::kLongest, .truncation = Truncation::kLongestFirst, .max_length = 3};
  const EncodedBatch right = encode_batch(*tokenizer, kTexts, {}, options);
  EXPECT_THAT(right.input_ids[0], ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(right.input_ids[1], ElementsAre('x', 256, 256));
  EXPECT_THAT(right.attention_mask[1], ElementsAre(1, 0, 0));
  options.pad_left = true;
  options.pad_id = 7;
  const EncodedBatch left = encode_batch(*tokenizer, kTexts, {}, options);
  EXPECT_THAT(left.input_ids[1], ElementsAre(7, 7, 'x'));
  EXPECT_THAT(left.attention_mask[1], ElementsAre(0, 0, 1));
}

TEST(Batch, Pairs_AreCutByTheRuleAsked) {
  const auto tokenizer = byte_tokenizer();
  const std::vector<std::string> first{"abcdef"};
  const std::vector<std::string> second{"uvwxyz"};
  const auto row = [&](Truncation truncation, int64_t length) {
    const BatchOptions options{.truncation = truncation, .max_length = length};
    return encode_batch(*tokenizer, first, second, options).input_ids[0];
  };
  EXPECT_THAT(row(Truncation::kLongestFirst, 5), ElementsAre('a', 'b', 'u', 'v', 'w'));
  EXPECT_THAT(row(Truncation::kOnlyFirst, 8), ElementsAre('a', 'b', 'u', 'v', 'w', 'x', 'y', 'z'));
  EXPECT_THAT(row(Truncation::kOnlySecond, 7), ElementsAre('a', 'b', 'c', 'd', 'e', 'f', 'u'));
  EXPECT_EQ(test::thrown_by([&] { row(Truncation::kOnlySecond, 6); }).code(), Code::kShape);
}

TEST(Batch, OptionsThatDoNotFit_AreRefused) {
  const auto tokenizer = byte_tokenizer();
  const std::vector<std::string> one{"a"};
  EXPECT_THAT(test::thrown_by([&] { encode_batch(*tokenizer, kTexts, one, {}); }).what(),
              HasSubstr("2 texts and 1 pairs"));
  EXPECT_THAT(test::thrown_by([&] {
                encode_batch(*tokenizer, kTexts, {},
                             {.truncation = Truncation::kLongestFirst, .max_length = -1});
              }).what(),
              HasSubstr("max_length=-1"));
  EXPECT_THAT(test::thrown_by([&] {
                encode_batch(*tokenizer, kTexts, {},
                             {.truncation = Truncation::kOnlySecond, .max_length = 2});
              }).what(),
              HasSubstr("needs pairs"));
}

}  // namespace
}  // namespace cleave
