// cleave lesson: the numbers of its recorded steps, compared with closed forms of its sizes.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {
namespace {

using nlohmann::json;

// The sizes that docs/lessons states: blocks, width, MLP, vocabulary, sequences, tokens.
constexpr double kL = 8, kH = 128, kF = 384, kV = 320, kB = 8, kS = 128;
constexpr double kMatrices = kL * (4 * kH * kH + 3 * kH * kF) + 2 * kV * kH;
constexpr double kNorms = (2 * kL + 1) * kH;
constexpr double kPsi = kMatrices + kNorms;
constexpr double kActivation = 4 * kB * kS * kH;  // bytes

/// What the answer to a question must be.
struct Wanted {
  double value;
  double tolerance = 0;  ///< relative
};

/// An all-reduce of the number of labels, 16 bytes on 4 ranks, is in the traffic of dp too.
constexpr double kWithLabels = 1e-5;

struct LessonCase {
  const char* name;
  std::vector<Wanted> wanted;
};

const std::vector<LessonCase>& cases() {
  static const std::vector<LessonCase> kAll{
      // The last one is a ratio of CPU times: one half and the work that both ranks do. Other
      // programs make either time up to half as large again.
      {"tp", {{4 * kActivation * kL}, {4 * (kMatrices / 2 + kNorms)}, {0.9, 0.6}}},
      {"sp", {{8 * kL}, {4 * kActivation * kL}, {(2 * kL + 1) * kB * kS * (kH + 1) * 4 / 2}}},
      // The first one follows from CPU times of stages that are not equal.
      {"pp", {{0.7, 0.6}, {kActivation}, {4}}},
      {"zero", {{8 * kPsi / 4}, {4 * kPsi * 5 / 4}, {2 * 4 * kPsi * 3 / 4, kWithLabels}}},
      {"fsdp",
       {{16 * kPsi / 4},
        {3 * 4 * kPsi * 3 / 4, kWithLabels},
        {4 * (4 * kH * kH + 3 * kH * kF + 2 * kH)}}}};
  return kAll;
}

class LessonProgram : public testing::TestWithParam<size_t> {};

TEST_P(LessonProgram, Answers_AreThoseOfTheClosedForms) {
  const TempFolder folder;
  const LessonCase& each = cases()[GetParam()];
  const std::string out = folder / "lesson";
  const RunResult ran = run_cleave({"lesson", each.name, "--out", out, "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  ASSERT_EQ(ran.out.find('\n'), ran.out.size() - 1) << "more than one line";
  const json found = json::parse(ran.out);
  ASSERT_EQ(found.at("questions").size(), each.wanted.size());
  for (size_t i = 0; i < each.wanted.size(); ++i) {
    const json& question = found.at("questions").at(i);
    const auto [value, tolerance] = each.wanted[i];
    EXPECT_NEAR(question.at("measured").get<double>(), value, tolerance * value) << question;
    if (tolerance <= kWithLabels) {
      EXPECT_DOUBLE_EQ(question.at("expected").get<double>(), value) << question;
    }
  }
  std::ifstream file(found.at("page").get<std::string>());
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(page.find("\"lesson\":{\"title\":"), std::string::npos);
  const RunResult again = run_cleave({"lesson", each.name, "--out", out});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_EQ(again.err,
            "cleave: --out " + out + " is not empty; choose another folder, or remove it\n");
}

INSTANTIATE_TEST_SUITE_P(Lessons, LessonProgram, testing::Range<size_t>(0, 5),
                         [](const auto& each) { return std::string(cases()[each.param].name); });

TEST(LessonText, Formulas_FollowTheMeaningOfTheirLetters) {
  const TempFolder folder;
  const RunResult ran = run_cleave({"lesson", "zero", "--out", folder / "lesson"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const std::string letters =
      "letters   b = 8 sequences of s = 128 tokens, width h = 128, L = 8 blocks, n = 4 ranks, "
      "psi = " +
      std::to_string(static_cast<int64_t>(kPsi)) + " weights\n";
  const size_t at = ran.out.find(letters);
  ASSERT_NE(at, std::string::npos) << ran.out;
  EXPECT_LT(at, ran.out.find("formula   "));
}

// The folder is there before libtorch is loaded, and the first run writes metrics.jsonl before its
// first step.
TEST(LessonSignal, StoppedLesson_LeavesNothing) {
  for (const std::string file : {"", "/before/metrics.jsonl"}) {
    const TempFolder folder;
    const std::string out = folder / "lesson";
    const std::string script = "\"$0\" lesson tp --out " + out + " & pid=$!; until [ -e " + out +
                               file + " ]; do sleep 0.01; done; kill -TERM $pid; wait $pid";
    const RunResult ran = run_program({"/bin/bash", "-c", script, test::program()});
    EXPECT_EQ(ran.exit_code, 143);
    EXPECT_EQ(ran.err, "");
    EXPECT_FALSE(std::filesystem::exists(out)) << file;
  }
}

TEST(LessonName, Unknown_IsRefused) {
  for (const auto& [words, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"lesson", "moe"}, "no lesson 'moe'; choose one of tp, sp, pp, zero, fsdp"},
           {{"lesson"}, "no lesson given; choose one of tp, sp, pp, zero, fsdp"}}) {
    const RunResult ran = run_cleave(words);
    EXPECT_EQ(ran.exit_code, 2);
    EXPECT_EQ(ran.err, "cleave: " + message + "\n");
  }
}

}  // namespace
}  // namespace cleave::test
