#include "cleave/report/record.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "tests/support/temp_folder.h"

namespace cleave::record_test {
namespace {

using test::TempFolder;

TEST(Record, AllParts_ComeBackInOrder) {
  const TempFolder folder;
  const RunRecord want{.title = "a <b>",
                       .outcome = "finished",
                       .num_steps = 20,
                       .first_step = 11,
                       .wall_s = 1.5,
                       .settings = {{"z", "1"}, {"a", "\"quoted\"\n"}},
                       .memory = {{.rank = "rank 0", .bytes = {{"w", 1}, {"g", 2}}, .forecast = 4}},
                       .other_time = {{"saving", 0.25}},
                       .step_time = {{"other", 0.125}},
                       .step_forecast = {{"other", 0.0625}}};
  write_record(folder.path(), want);
  const RunRecord got = read_record(folder.path());
  EXPECT_EQ(got.title, want.title);
  EXPECT_EQ(got.outcome, want.outcome);
  EXPECT_EQ(got.num_steps, want.num_steps);
  EXPECT_EQ(got.first_step, want.first_step);
  EXPECT_EQ(got.wall_s, want.wall_s);
  EXPECT_EQ(got.settings, want.settings);
  ASSERT_EQ(got.memory.size(), 1U);
  EXPECT_EQ(got.memory[0].rank, "rank 0");
  EXPECT_EQ(got.memory[0].bytes, want.memory[0].bytes);
  EXPECT_EQ(got.memory[0].forecast, 4);
  EXPECT_EQ(got.other_time, want.other_time);
  EXPECT_EQ(got.step_time, want.step_time);
  EXPECT_EQ(got.step_forecast, want.step_forecast);
}

TEST(Record, BytesThatAreNotUtf8_AreReplaced) {
  const TempFolder folder;
  write_record(folder.path(), {.settings = {{"command", "--out a\xff"}}});
  EXPECT_EQ(read_record(folder.path()).settings[0].second, "--out a\xEF\xBF\xBD");
}

/// The message and code of reading this report.json, "" for no such file.
std::string refusal(const std::string& text, Code code) {
  const TempFolder folder;
  if (!text.empty()) std::ofstream(folder / "report.json") << text;
  try {
    read_record(folder.path());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error: " << text;
  return "";
}

TEST(Record, FolderThatIsNotARun_IsNamedWithTheRemedy) {
  const std::string message = refusal("", Code::kIo);
  EXPECT_NE(message.find("is not a run: it has no report.json"), std::string::npos) << message;
  try {
    read_record("/nowhere");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "/nowhere: no such folder");
  }
}

TEST(Record, BrokenFiles_NameTheKey) {
  const std::string start = R"({"title":"t","outcome":"","num_steps":1,"first_step":1,"wall_s":0,)";
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"{", "report.json"},
           {"[]", "report.json"},
           {R"({"title":3})", "title"},
           {start + R"("settings":[],"memory":[]})", "settings"},
           {start + R"("settings":{"a":1},"memory":[]})", "a"},
           {start + R"("memory":{}})", "memory"},
           {start + R"("memory":[{"rank":"r","bytes":{"w":-1}}]})", "w"},
           {start + R"("memory":[{"rank":"r","bytes":{"w":1}},{"rank":"s","bytes":{}}]})",
            "as many kinds"},
           {start + R"("memory":[],"step_time":{"a":-1}})", "a"}}) {
    const std::string message = refusal(text, Code::kFormat);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace cleave::record_test
