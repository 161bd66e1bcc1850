#include "cleave/text/csv.h"

#include <array>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/base/stop.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::csv_test {
namespace {

using test::thrown_by;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Record = std::vector<std::string>;

/// Header and records of a CSV text.
std::vector<Record> all_of(std::string_view text, const CsvLimits& limits = {}) {
  CsvReader reader(text, "a.csv", limits);
  std::vector<Record> out{reader.header()};
  while (auto record = reader.next()) out.push_back(std::move(*record));
  return out;
}

std::string refusal_of(std::string_view text, const CsvLimits& limits = {}) {
  const Error error = thrown_by([&] { all_of(text, limits); });
  EXPECT_EQ(error.code(), Code::kFormat);
  return error.what();
}

TEST(CsvReader, PlainFields_AreTheBytesBetweenCommas) {
  EXPECT_THAT(all_of("a,b\n1,2\n ,\n"),
              ElementsAre(Record{"a", "b"}, Record{"1", "2"}, Record{" ", ""}));
  EXPECT_THAT(all_of("a,b\r\n1,2"), ElementsAre(Record{"a", "b"}, Record{"1", "2"}));
  EXPECT_THAT(all_of("a\n\n\r\n1\n\n"), ElementsAre(Record{"a"}, Record{"1"}));
  EXPECT_THAT(all_of("\xEF\xBB\xBF"
                     "a\n1"),
              ElementsAre(Record{"a"}, Record{"1"}));
}

TEST(CsvReader, QuotedFields_KeepCommasQuotesAndLineBreaks) {
  EXPECT_THAT(
      all_of("review,sentiment\n\"A \"\"gem\"\", truly.<br />\nGo, see\r\nit!\",positive\n"
             "\"\",\"\"\"\"\r\n"),
      ElementsAre(Record{"review", "sentiment"},
                  Record{"A \"gem\", truly.<br />\nGo, see\r\nit!", "positive"}, Record{"", "\""}));
}

TEST(CsvReader, AnEmptyQuotedField_IsARecordAndNotABlankLine) {
  EXPECT_THAT(all_of("a\n\"\"\n"), ElementsAre(Record{"a"}, Record{""}));
}

// Oracle: line and column of the error, counted by hand.
TEST(CsvReader, BrokenRecords_AreRefusedAtTheirLineAndColumn) {
  EXPECT_THAT(refusal_of("a,b\n1,\"x\n\n"), StartsWith("a.csv:2:3: the quote that opens here"));
  EXPECT_THAT(refusal_of("a,b\n1,x\"y\n"), StartsWith("a.csv:2:4: a quote inside a field"));
  EXPECT_THAT(refusal_of("a,b\n\"1\n2\"x,3\n"), StartsWith("a.csv:3:3: expected a comma"));
  EXPECT_THAT(refusal_of("a,b\n1,2\n3\n"),
              StartsWith("a.csv:3:1: the record has 1 field; the header has 2"));
  EXPECT_THAT(refusal_of("a,b\n1,2,3\n"), HasSubstr("has 3 fields"));
  EXPECT_THAT(refusal_of("a,b\n1,2\rx\n"), StartsWith("a.csv:2:4: a carriage return"));
  EXPECT_THAT(refusal_of("a,b\n1,x\xE9t\n"),
              StartsWith("a.csv:2:3: byte 2 of the field that begins here is not UTF-8"));
  EXPECT_THAT(refusal_of("a\n\"\n" + std::string(70'000, 'x') + "\n\nyz\"!"),
              StartsWith("a.csv:5:4: expected a comma"));
  EXPECT_THAT(refusal_of("a,b\n" + std::string(70'000, 'x') + ",y\""),
              StartsWith("a.csv:2:70003: a quote inside a field"));
  EXPECT_THAT(refusal_of(""), StartsWith("a.csv:1:1: the file is empty"));
  EXPECT_THAT(refusal_of("\n\n"), StartsWith("a.csv:3:1: the file is empty"));
}

TEST(CsvReader, SizesBeyondTheLimits_AreRefusedBeforeTheyAreStored) {
  const CsvLimits limits{.max_record_bytes = 16, .max_fields = 3};
  EXPECT_THAT(refusal_of("a\n\"" + std::string(100, 'x'), limits),
              StartsWith("a.csv:2:1: the record has more than 16 bytes"));
  EXPECT_THAT(refusal_of("a,b,c,d\n", limits), HasSubstr("more than 3 fields"));
  EXPECT_THAT(all_of("a\n12345678901234\n12345678901234\n", limits), testing::SizeIs(3));
}

TEST(CsvReader, RecordsAcrossBlocks_AreComplete) {
  // Fields of every length around the reader's block of 64 KiB.
  const test::TempFolder folder;
  const std::string path = folder / "blocks.csv";
  std::vector<std::string> texts;
  std::string bytes = "text\n";
  for (size_t length = 65520; length < 65550; ++length) {
    texts.push_back(std::string(length, 'x') + ",\"\n" + std::to_string(length));
    bytes += '"' + std::string(length, 'x') + ",\"\"\n" + std::to_string(length) + "\"\r\n";
  }
  std::ofstream(path, std::ios::binary) << bytes;
  CsvReader reader(path);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto record = reader.next();
    ASSERT_TRUE(record);
    EXPECT_TRUE(record->front() == texts[i]) << "record " << i;
    EXPECT_EQ(reader.place(), path + ":" + std::to_string(2 + 2 * i));
  }
  EXPECT_FALSE(reader.next());
}

TEST(CsvReader, Signal_EndsALongFile) {
  const test::TempFolder folder;
  const std::string path = folder / "a.csv";
  std::ofstream(path) << "text\n" << std::string(1 << 17, 'x') << "\nlast\n";
  const StopSignal stop;
  CsvReader reader(path);
  ASSERT_EQ(std::raise(SIGTERM), 0);
  int got = 0;
  try {
    (void)reader.next();
  } catch (const Stopped& stopped) {
    got = stopped.signal;
  }
  EXPECT_EQ(got, SIGTERM);
}

TEST(CsvReader, Column_IsFoundByOneOfItsNames) {
  constexpr std::array<std::string_view, 2> kText{"text", "review"};
  EXPECT_EQ(CsvReader("id,review\n", "a.csv").column(kText), 1U);
  const CsvReader other("id,body\n", "a.csv");
  const Error error = thrown_by([&] { (void)other.column(kText); });
  EXPECT_THAT(error.what(), HasSubstr("the header is 'id', 'body'; expected a column named one of "
                                      "'text', 'review'"));
  for (const char* header : {"text;label\n", "text\tlabel\n", "text|label\n"}) {
    const Error one = thrown_by([&] { (void)CsvReader(header, "a.csv").column(kText); });
    EXPECT_THAT(one.what(), HasSubstr("'text', 'review'; commas separate the columns"));
  }
}

}  // namespace
}  // namespace cleave::csv_test
