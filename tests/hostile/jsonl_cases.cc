// JSONL files are refused with the line, or have one value per line.
#include <string>
#include <vector>

#include "cleave/text/jsonl.h"
#include "tests/hostile/hostile.h"

namespace cleave::test {
namespace {

std::vector<HostileCase> accepted() {
  return {
      {"no bytes", "", ""},
      {"only blank lines", "\n \t\r\n\n", ""},
      {"one value, no line end", R"({"a":1})", ""},
      {"CR LF", "{\"a\":1}\r\n[2]\r\n", ""},
      {"a byte order mark", "\xEF\xBB\xBF{\"a\":1}\n", ""},
      {"spaces around a value", "  {\"a\" : 1}  \n", ""},
      {"values of every type", "null\ntrue\n-0\n1e5\n\"x\"\n[]\n{}\n", ""},
      {"minus zero", "-0\n-0.0\n-0e0\n", ""},
      {"a number that no float represents", "1e400\n", ""},
      {"128 levels", repeated("[", 128) + repeated("]", 128) + "\n", ""},
      {"100,000 short lines", repeated("0\n", 100'000), ""},
      {"a string of 14 MB", "", "", [] { return "\"" + std::string(14'000'000, 'x') + "\"\n"; }},
  };
}

std::vector<HostileCase> refused() {
  return {
      {"the second line", "{}\n{\n", ":2: found the end of the text"},
      {"two values in a line", "{} {}\n", ":1: found '{', expected nothing after the end"},
      {"a value over two lines", "{\"a\":\n1}\n", ":1: found the end"},
      {"CR as line ends", "{}\r{}\r", ":1: found '{'"},
      {"a form feed between", "{}\f\n", "byte value 12"},
      {"a comma between lines", "{},\n{}\n", ":1: found ','"},
      {"an array around lines", "[{},\n{}]\n", ":1: found the end"},
      {"a byte order mark later", "{}\n\xEF\xBB\xBF{}\n", ":2: the text begins with a byte order"},
      {"a NUL", std::string("{}\n\0\n", 5), ":2: found byte value 0"},
      {"a NUL in a string", std::string("\"a\0b\"\n", 6), "control character 0"},
      {"a line end in a string", "\"a\nb\"\n", ":1: a string has no end"},
      {"a tab in a string", "\"a\tb\"\n", "control character 9"},
      {"bad UTF-8", "\"\xC3\x28\"\n", ":1: a string is not valid UTF-8 (byte 1)"},
      {"a half surrogate pair", "\"\\ud800\"\n", "half of a surrogate pair"},
      {"UTF-16", std::string("\xFF\xFE{\0}\0\n\0", 8), "is UTF-16 text; convert it to UTF-8"},
      {"a key twice", R"({"a":1,"a":2})", "occurs twice"},
      {"a key twice, escaped", R"({"a":1,"\u0061":2})", "occurs twice"},
      {"NaN", "NaN\n", "expected a value"},
      {"Infinity", "{\"a\":-Infinity}\n", "expected a digit"},
      {"a number that begins with 0", "01\n", "begins with 0"},
      {"a plus", "+1\n", "found '+'"},
      {"hexadecimal", "0x10\n", "found 'x'"},
      {"single quotes", "{'a':1}\n", "expected a key in quotes"},
      {"a comment", "{} // x\n", "found a comment, which JSON does not have"},
      {"a trailing comma", "[1,]\n", "found ']'"},
      {"100,000 open brackets", repeated("[", 100'000) + "\n", "nested deeper than 128"},
      {"a bracket too many", "[1]]\n", "found ']'"},
      {"a word", "nul\n", "expected null"},
  };
}

}  // namespace

HostileSet jsonl_set() {
  HostileSet set{.kind = "jsonl",
                 .file_name = "data.jsonl",
                 .least = 40,
                 .seed = "{\"text\":\"a\\u00e9\",\"label\":-0}\n\n[1,true]\n",
                 .detects_truncation = false,
                 .cases = accepted()};
  for (HostileCase& c : refused()) set.cases.push_back(std::move(c));
  set.read = [](const std::filesystem::path& folder) {
    JsonLines lines((folder / "data.jsonl").string());
    while (const auto value = lines.next()) (void)value->dump();
  };
  return set;
}

}  // namespace cleave::test
