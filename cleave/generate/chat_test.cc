#include "cleave/generate/chat.h"

#include <string>

#include <gtest/gtest.h>

namespace cleave::chat_test {
namespace {

TEST(AnswerText, EndInParts_IsNeverPrinted) {
  AnswerText answer("<end>");
  EXPECT_EQ(answer.push("a<"), "a");
  EXPECT_EQ(answer.push("b<en"), "<b");
  EXPECT_FALSE(answer.has_ended());
  EXPECT_EQ(answer.push("d>c"), "");
  EXPECT_TRUE(answer.has_ended());
  EXPECT_EQ(answer.push("d"), "");
  EXPECT_EQ(answer.finish(), "");
  EXPECT_EQ(answer.text(), "a<b");
}

TEST(AnswerText, BeginningOfTheEnd_IsPrintedWhenNothingFollows) {
  AnswerText answer("<end>");
  EXPECT_EQ(answer.push("x<e"), "x");
  EXPECT_EQ(answer.finish(), "<e");
  EXPECT_EQ(answer.text(), "x<e");
  AnswerText endless("");
  EXPECT_EQ(endless.push("a<"), "a<");
}

TEST(StopId, EndOfSeveralTokens_HasTheIdOfItsFirstSpecialToken) {
  constexpr int64_t kEnd = 256;  // of the byte tokenizer
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(stop_id(*tokenizer, "<|endoftext|>"), kEnd);
  EXPECT_EQ(stop_id(*tokenizer, "<|endoftext|>\n<|endoftext|>"), kEnd);
  EXPECT_EQ(stop_id(*tokenizer, "\n<|endoftext|>"), std::nullopt);
  EXPECT_EQ(stop_id(*tokenizer, "<|im_end|>"), std::nullopt);
  EXPECT_EQ(stop_id(*tokenizer, ""), std::nullopt);
}

class History : public testing::Test {
 protected:
  /// The text of the prompt, and how many messages were dropped for it.
  std::string prompt(int64_t limit, int64_t positions = 1000) {
    dropped_ = 0;
    return tokenizer_->decode(history_.prompt(limit, positions, &dropped_));
  }

  std::shared_ptr<const Tokenizer> tokenizer_ = byte_tokenizer();
  ChatHistory history_{std::make_shared<const ChatTemplate>(
                           "{% for m in messages %}{{ m.role[0] + m.content }};{% endfor %}"
                           "{% if add_generation_prompt %}a{% endif %}",
                           "t", *tokenizer_, 0),
                       tokenizer_};
  int64_t dropped_ = 0;
};

TEST_F(History, TooLong_DropsTheOldestTurnsButNotTheSystemMessage) {
  history_.set_system("S");
  history_.add("user", "one");
  history_.add("assistant", "two");
  history_.add("user", "three");
  EXPECT_EQ(prompt(100), "sS;uone;atwo;uthree;a");
  EXPECT_EQ(dropped_, 0);
  EXPECT_EQ(prompt(20), "sS;uthree;a");
  EXPECT_EQ(dropped_, 2);
  // The last message stays, whatever the limit is.
  EXPECT_EQ(prompt(3), "sS;uthree;a");
  EXPECT_EQ(dropped_, 0);
  history_.drop_last();
  history_.add("user", "x");
  EXPECT_EQ(prompt(100), "sS;ux;a");
}

TEST_F(History, MessageLongerThanThePositions_LeavesTheConversation) {
  history_.add("user", "one");
  history_.add("assistant", "two");
  history_.add("user", "a long message");
  EXPECT_EQ(prompt(8, 12), "ua long message;a");
  EXPECT_EQ(dropped_, 0);
  history_.drop_last();
  history_.add("user", "x");
  EXPECT_EQ(prompt(100, 100), "uone;atwo;ux;a");
}

TEST_F(History, Reset_KeepsTheSystemMessage) {
  history_.set_system("S");
  history_.add("user", "one");
  history_.reset();
  EXPECT_EQ(prompt(100), "sS;a");
  history_.set_system("");
  EXPECT_EQ(prompt(100), "a");
}

}  // namespace
}  // namespace cleave::chat_test
