// CSV files are refused with line and column, or their records are as wide as the header.
#include <string>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/text/csv.h"
#include "tests/hostile/hostile.h"

namespace cleave::test {
namespace {

std::vector<HostileCase> accepted() {
  return {
      {"one column, no records", "text", ""},
      {"one column, no records, a line end", "text\n", ""},
      {"no line end after the last record", "text,label\na,0", ""},
      {"CR LF", "text,label\r\na,0\r\n", ""},
      {"LF and CR LF mixed", "text,label\r\na,0\nb,1\r\n", ""},
      {"a byte order mark", "\xEF\xBB\xBFtext,label\na,0\n", ""},
      {"blank lines", "\n\ntext,label\n\n\r\na,0\n\n", ""},
      {"empty fields", "text,label\n,\n", ""},
      {"an empty quoted field", "text\n\"\"\n", ""},
      {"quotes around everything", "\"text\",\"label\"\n\"a\",\"0\"\n", ""},
      {"a quote in quotes", "text\n\"a\"\"b\"\n", ""},
      {"only quotes", "text\n\"\"\"\"\"\"\n", ""},
      {"line breaks in quotes", "text,label\n\"a\nb\r\nc\",0\n", ""},
      {"commas in quotes", "text,label\n\"a,b,,c\",0\n", ""},
      {"minus zero", "x\n-0\n", ""},
      {"a formula", "x\n=cmd()\n", ""},
      {"spaces around fields", " text , label \n a , 0 \n", ""},
      {"columns with the same name", "a,a,a\n1,2,3\n", ""},
      {"the highest character", "x\n\xF4\x8F\xBF\xBF\n", ""},
      {"a NUL in quotes", std::string("x\n\"a\0b\"\n", 8), ""},
      {"1,024 columns", repeated("x,", 1023) + "x\n" + repeated("1,", 1023) + "1\n", ""},
      {"100,000 blank lines", "x\n" + repeated("\n", 100'000) + "1\n", ""},
  };
}

std::vector<HostileCase> refused() {
  return {
      {"no bytes", "", ":1:1: the file is empty"},
      {"only line ends", "\n\r\n\n", ":4:1: the file is empty"},
      {"only a byte order mark", "\xEF\xBB\xBF", "the file is empty"},
      {"a quote that never ends", "a,b\n1,\"x\n\n", ":2:3: the quote that opens here"},
      {"a quote that never ends in the header", "\"a,b\n1,2\n", ":1:1: the quote that opens here"},
      {"a quote inside a field", "a,b\n1,x\"y\n", ":2:4: a quote inside a field"},
      {"text after a quote", "a,b\n\"1\"x,2\n", ":2:4: expected a comma"},
      {"a space after a quote", "a,b\n\"1\" ,2\n", ":2:4: expected a comma"},
      {"two quoted texts in a field", "a\n\"x\"\"y\" \"z\"\n", "expected a comma"},
      {"a record too short", "a,b\n1,2\n3\n", ":3:1: the record has 1 field; the header has 2"},
      {"a record too long", "a,b\n1,2,3\n", ":2:1: the record has 3 fields"},
      {"a comma too many", "a,b\n1,2,\n", "the record has 3 fields"},
      {"CR as line ends", "a,b\r1,2\r3,4\r", ":1:4: a carriage return"},
      {"CR in a field", "a,b\n1\r,2\n", "a carriage return"},
      {"CR CR LF", "a,b\r\r\n1,2\r\r\n", "a carriage return"},
      {"half a character", "a\nx\xE9t\n",
       ":2:1: byte 2 of the field that begins here is not UTF-8"},
      {"overlong UTF-8", "a\n\xC0\xAF\n", "is not UTF-8"},
      {"a surrogate", "a\n\xED\xA0\x80\n", "is not UTF-8"},
      {"bad UTF-8 in the header", "\xFF,b\n1,2\n", "is not UTF-8"},
      {"bad UTF-8 in quotes", "a\n\"\xFF\"\n", "is not UTF-8"},
      {"a character broken by a comma", "a,b\n\xC3,x\n", "is not UTF-8"},
      {"UTF-16",
       std::string("\xFF\xFE"
                   "a\0,\0b\0\n\0",
                   10),
       "is UTF-16 text; convert it to UTF-8"},
      {"gzip", "\x1f\x8b\x08", "is compressed by gzip; unpack it"},
      {"1,025 columns", repeated("x,", 1024) + "x\n", "more than 1024 fields"},
      {"a million commas", "a,b\n" + repeated(",", 1'000'000), "more than 1024 fields"},
      {"a line of 65 MB", "", "more than 67108864 bytes",
       [] { return "a\n" + std::string(size_t{65} << 20, 'x'); }},
      {"a quoted field of 65 MB", "", "more than 67108864 bytes",
       [] { return "a\n\"" + repeated("x\n", size_t{33} << 20); }},
  };
}

}  // namespace

HostileSet csv_set() {
  HostileSet set{.kind = "csv",
                 .file_name = "data.csv",
                 .least = 40,
                 .most_seconds = 1,
                 .seed = "text,label\n\"a, \"\"b\"\"\r\nc\",0\nd,1\n",
                 .detects_truncation = false,
                 .cases = accepted()};
  for (HostileCase& c : refused()) set.cases.push_back(std::move(c));
  set.read = [](const std::filesystem::path& folder) {
    CsvReader reader((folder / "data.csv").string());
    while (const auto record = reader.next()) {
      CLEAVE_CHECK(record->size() == reader.header().size(), Code::kBug, "a ragged record");
    }
  };
  return set;
}

}  // namespace cleave::test
