#include <gtest/gtest.h>

#include "cleave/generate/generate.h"
#include "cleave/generate/runnable.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

// Oracle: transformers 5.23.0 with the options of each case (tests/golden/generate/search.json), on
// the golden models: early stopping, length penalties, repetition, beams and greedy.
namespace cleave::search_test {
namespace {

Ids ids_of(const Json& json) {
  Ids out;
  for (size_t i = 0; i < json.size(); ++i) out.push_back(json.at(i).as_int());
  return out;
}

EarlyStopping early_stopping_of(const Json& options) {
  if (!options.has("early_stopping")) return EarlyStopping::kFalse;
  const Json value = options.at("early_stopping");
  return value.is(Json::Type::kString) ? EarlyStopping::kNever : EarlyStopping::kTrue;
}

GenerateSettings settings_of(const Json& options, const Runnable& runnable) {
  return {.max_new_tokens = 16,
          .num_beams = options.int_or("num_beams", 1),
          .num_return_sequences = options.int_or("num_return_sequences", 1),
          .length_penalty = options.number_or("length_penalty", 1),
          .early_stopping = early_stopping_of(options),
          .no_repeat_ngram_size = options.int_or("no_repeat_ngram_size", 0),
          .repetition_penalty = options.number_or("repetition_penalty", 1),
          .eos_ids = runnable.eos_ids()};
}

void expect_case(const Json& wanted, const Generation& got) {
  const Json rows = wanted.at("rows");
  ASSERT_EQ(got.prompts[0].size(), rows.size());
  for (size_t s = 0; s < rows.size(); ++s) {
    EXPECT_EQ(got.prompts[0][s].ids, ids_of(rows.at(s))) << wanted.at("options").dump();
    if (!wanted.has("scores")) continue;
    const double score = wanted.at("scores").at(s).as_number();
    EXPECT_NEAR(got.prompts[0][s].score, score, 1e-4 * std::max(1.0, std::abs(score)))
        << wanted.at("options").dump();
  }
}

class SearchOptions : public ::testing::TestWithParam<int> {};

TEST_P(SearchOptions, EveryCase_GivesIdsAndScoresOfTheReference) {
  const Json cases =
      Json::parse_file(test::source_file("tests/golden/generate/search.json")).at("cases");
  ASSERT_GT(cases.size(), 20U);
  for (size_t c = 0; c < cases.size(); ++c) {
    const Json wanted = cases.at(c);
    const std::string model = wanted.at("model").as_string();
    const Runnable runnable(test::golden_folder(model), "", "cpu");
    test::on_ranks(GetParam(), [&](const Axis& tp) {
      const auto rank_model = runnable.load(tp);
      expect_case(wanted, generate(*rank_model, tp, {ids_of(wanted.at("prompt"))},
                                   settings_of(wanted.at("options"), runnable)));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SearchOptions, ::testing::Values(1, 2, 3),
                         [](const auto& tp) { return str("tp", tp.param); });

}  // namespace
}  // namespace cleave::search_test
