#include <gtest/gtest.h>

#include "cleave/verify/verify.h"
#include "tests/support/own_models.h"

// Oracle: which of the models reads the earlier tokens and the positions as it should.
namespace cleave::decoding_test {
namespace {

using test::OwnModel;
using test::OwnOptions;
using Positions = OwnOptions::Positions;

constexpr const char* kDecoding = "decoding with the KV cache";

VerifyReport verified(const OwnOptions& options, int tp) {
  return verify_model(
      [&] { return std::make_unique<OwnModel>(options); },
      {.tp = tp, .num_tokens = 7, .num_new_tokens = 3, .threads_per_rank = 1, .timeout_s = 20});
}

/// The part of decoding; null if it was not compared.
const VerifiedPart* decoding_of(const VerifyReport& report) {
  for (const VerifiedPart& part : report.parts) {
    if (part.name == kDecoding) return &part;
  }
  return nullptr;
}

TEST(VerifyDecoding, PositionsOfTheContext_Agree) {
  for (const int tp : {1, 2}) {
    const VerifyReport report = verified({.positions = Positions::kByContext}, tp);
    EXPECT_EQ(report.first_difference(), nullptr) << verdict(report);
    const VerifiedPart* decoding = decoding_of(report);
    ASSERT_NE(decoding, nullptr);
    EXPECT_EQ(decoding->values.size(), 2U);
  }
}

TEST(VerifyDecoding, PositionsFromZeroInEachStep_AreFound) {
  for (const int tp : {1, 2}) {
    const VerifyReport report = verified({.positions = Positions::kFromZero}, tp);
    ASSERT_NE(report.first_difference(), nullptr);
    EXPECT_EQ(report.first_difference()->name, kDecoding);
    const Comparison& c = *report.first_difference()->first_difference();
    EXPECT_EQ(c.quantity(), "logits of whole sequences");
    EXPECT_GT(c.distance, 1e6 * c.bound);
    const std::string text = report_text(report);
    const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
    EXPECT_EQ(last.find("decoding with the KV cache differs from a run of the whole sequence: "
                        "logits of whole sequences differ by "),
              0U)
        << last;
  }
}

// Generation in a batch of unequal prompts gives the positions.
TEST(VerifyDecoding, PositionsThatCountPadding_AreFound) {
  const VerifyReport report = verified({.positions = Positions::kByCache}, 2);
  ASSERT_NE(report.first_difference(), nullptr);
  EXPECT_EQ(report.first_difference()->name, kDecoding);
  EXPECT_EQ(report.first_difference()->first_difference()->quantity(),
            "logits of padded sequences");
}

TEST(VerifyDecoding, ModelWithoutACache_HasNone) {
  const VerifyReport report = verified({.uses_cache = false, .positions = Positions::kFromZero}, 2);
  EXPECT_EQ(report.first_difference(), nullptr) << verdict(report);
  EXPECT_EQ(decoding_of(report), nullptr);
}

}  // namespace
}  // namespace cleave::decoding_test
