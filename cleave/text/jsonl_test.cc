#include "cleave/text/jsonl.h"

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace cleave::jsonl_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string write(const std::string& bytes) {
  // One folder per process, because ctest runs the tests of this binary in parallel.
  static const test::TempFolder folder;
  std::string path = folder / "jsonl_test.jsonl";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::vector<std::string> lines_of(const std::string& bytes) {
  LineReader reader(write(bytes));
  std::vector<std::string> lines;
  while (const auto line = reader.next()) lines.emplace_back(*line);
  EXPECT_EQ(reader.line(), lines.size());
  return lines;
}

TEST(LineReader, LineEnds_AreRemovedAndTheLastLineNeedsNone) {
  EXPECT_THAT(lines_of(""), ElementsAre());
  EXPECT_THAT(lines_of("a"), ElementsAre("a"));
  EXPECT_THAT(lines_of("a\n"), ElementsAre("a"));
  EXPECT_THAT(lines_of("a\r\n\nb\rc\n\n"), ElementsAre("a", "", "b\rc", ""));
  EXPECT_THAT(lines_of(std::string("a\0b\n\xFF", 5)), ElementsAre(std::string("a\0b", 3), "\xFF"));
}

TEST(LineReader, LinesLongerThanABlock_AreComplete) {
  const std::string a(700000, 'a');
  const std::string b(262144, 'b');
  const std::string c(262143, 'c');
  EXPECT_THAT(lines_of(a + "\n" + b + "\n" + c + "\nd"), ElementsAre(a, b, c, "d"));
}

TEST(LineReader, FileThatIsNotUtf8_IsRefusedWithTheCommandThatConvertsIt) {
  const auto said = [](std::string_view bytes) {
    try {
      (void)lines_of(std::string(bytes));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kFormat);
      return std::string(error.what());
    }
    return std::string("read");
  };
  using namespace std::string_view_literals;
  EXPECT_THAT(said("\xff\xfe{\0}\0\n\0"sv),
              HasSubstr("jsonl_test.jsonl is UTF-16 text; convert it"));
  EXPECT_THAT(said("\xfe\xff\0{\0}\0\n"sv),
              HasSubstr("jsonl_test.jsonl is UTF-16 text; convert it"));
  EXPECT_THAT(said("\x1f\x8b\x08\0\n"sv),
              HasSubstr("is compressed by gzip; unpack it: gunzip -k "));
  EXPECT_EQ(said("{}\n\x1f\x8b\n\xff\xfe\n"sv),
            "read");  // only the file's first bytes tell its kind
}

TEST(LineReader, LineOverTheBound_IsRefusedWithItsNumber) {
  const std::string path = write("12345\n123456\n");
  LineReader reader(path, 5);
  EXPECT_EQ(reader.next(), "12345");
  try {
    reader.next();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), HasSubstr("jsonl_test.jsonl:2: the line has 6 bytes"));
  }
  LineReader endless(write(std::string(1000000, 'x')), 300000);
  EXPECT_THROW(endless.next(), Error);
}

TEST(JsonLines, Values_SkipBlankLinesAndErrorsNameTheLine) {
  JsonLines lines(write("{\"a\": 1}\n\n  \r\n[2]\n{\"a\": }\n"));
  EXPECT_EQ(lines.next()->dump(), "{\"a\":1}");
  EXPECT_EQ(lines.next()->dump(), "[2]");
  EXPECT_EQ(lines.line(), 4U);
  try {
    lines.next();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("jsonl_test.jsonl:5: found '}', expected a value (byte 6); JSONL has "
                          "one JSON object per line"));
  }
}

TEST(JsonLines, MissingFile_IsAnIoError) {
  try {
    JsonLines lines(::testing::TempDir() + "none.jsonl");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
  }
}

}  // namespace
}  // namespace cleave::jsonl_test
