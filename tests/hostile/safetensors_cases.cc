#include <algorithm>
#include <string>
#include <vector>

#include "cleave/base/dtype.h"
#include "cleave/base/str.h"
#include "cleave/format/safetensors.h"
#include "tests/hostile/hostile.h"

namespace cleave::test {
namespace {

std::string length(uint64_t n) {
  std::string bytes;
  for (int i = 0; i < 8; ++i, n >>= 8) bytes.push_back(static_cast<char>(n & 0xff));
  return bytes;
}

std::string file(const std::string& header, size_t data_bytes = 0) {
  return length(header.size()) + header + std::string(data_bytes, 'd');
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":[)" + shape +
         R"(],"data_offsets":[)" + offsets + "]}";
}

std::string object(const std::vector<std::string>& members) {
  std::string text = "{";
  for (const std::string& member : members) text += (text.size() > 1 ? "," : "") + member;
  return text + "}";
}

/// One U8 tensor "t" of 4 bytes whose JSON value is `value`.
std::string one(const std::string& value) {
  return file(R"({"t":)" + value + "}", 4);
}

std::vector<HostileCase> accepted_cases() {
  const std::string t = entry("t", "U8", "4", "0,4");
  std::vector<HostileCase> cases = {
      {"no tensors", file("{}"), ""},
      {"no tensors, padded", file("{}      "), ""},
      {"only metadata", file(R"({"__metadata__":{"a":"b","":""}})"), ""},
      {"one tensor", file(object({t}), 4), ""},
      {"scalar", file(object({entry("t", "F32", "", "0,4")}), 4), ""},
      {"empty tensor", file(object({entry("t", "F32", "0", "0,0")})), ""},
      {"empty tensor with a huge dim",
       file(object({entry("t", "F32", "0,9223372036854775807", "0,0")})), ""},
      {"empty tensors between others",
       file(object({entry("a", "U8", "2", "0,2"), entry("e", "U8", "0", "2,2"),
                    entry("f", "I8", "0", "2,2"), entry("b", "U8", "2", "2,4")}),
            4),
       ""},
      {"entries in another order than their bytes",
       file(object({entry("b", "U8", "2", "2,4"), entry("a", "U8", "2", "0,2")}), 4), ""},
      {"unaligned tensor",
       file(object({entry("a", "U8", "1", "0,1"), entry("b", "F64", "1", "1,9")}), 9), ""},
      {"non-Latin names and quotes",
       file(object({entry("\\u00fc\xE6\xB0\xB4\\\"", "U8", "4", "0,4")}), 4), ""},
      {"name that looks like a path",
       file(object({entry("../../etc/passwd", "U8", "4", "0,4")}), 4), ""},
      {"spaces inside the header", file("{ \"t\" :\n" + t.substr(4) + " }", 4), ""},
      {"64 dims", file(object({entry("t", "U8", "4" + repeated(",1", 63), "0,4")}), 4), ""},
  };
  for (const auto* dtype : {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"}) {
    const auto known = dtype_from_file_name(dtype);
    const auto size = static_cast<size_t>(item_bytes(*known));
    cases.push_back({std::string("dtype ") + dtype,
                     file(object({entry("t", dtype, "1", "0," + std::to_string(size))}), size),
                     ""});
  }
  return cases;
}

std::vector<HostileCase> broken_frames() {
  const std::string header = object({entry("t", "U8", "4", "0,4")});
  std::string big_endian = length(header.size());
  std::reverse(big_endian.begin(), big_endian.end());
  return {
      {"no bytes", "", "has 0 bytes"},
      {"seven bytes", std::string(7, '\0'), "has 7 bytes"},
      {"length alone", length(2), "is truncated"},
      {"length 0", length(0) + "{}", "header of 0 bytes"},
      {"length one too long", length(header.size() + 5) + header + "dddd", "is truncated"},
      {"length one too short", length(header.size() - 1) + header + "dddd", "the end of the text"},
      {"length 2^63", length(uint64_t{1} << 63) + header, "expected 1 to 16777216"},
      {"length 2^64-1", length(UINT64_MAX) + header, "expected 1 to 16777216"},
      {"length 100 MB and one", length(100'000'001) + header, "expected 1 to 16777216"},
      {"length 16 MB of a small file", length(16'000'000) + header, "is truncated"},
      {"big-endian length", big_endian + header + "dddd", "not a safetensors file"},
      {"leading space", file(" " + header, 4), "does not begin with '{'"},
      {"leading byte order mark", file("\xEF\xBB\xBF" + header, 4), "does not begin with '{'"},
      {"array", file("[]"), "does not begin with '{'"},
      {"trailing line end", file(header + "\n", 4), "does not end in '}' and spaces"},
      {"trailing NUL", file(header + std::string(1, '\0'), 4), "does not end in '}' and spaces"},
      {"two objects", file("{}{}"), "nothing after the end"},
      {"unclosed", file(header.substr(0, header.size() - 1), 4), "found the end"},
      {"trailing comma", file("{" + entry("t", "U8", "4", "0,4") + ",}", 4),
       "expected a key in quotes"},
      {"comment", file("{/*x*/}"), "found a comment, which JSON does not have"},
      {"bad UTF-8", file(object({entry("\xC3\x28", "U8", "4", "0,4")}), 4), "not valid UTF-8"},
      {"overlong UTF-8", file(object({entry("\xC0\xAF", "U8", "4", "0,4")}), 4), "not valid UTF-8"},
      {"lone surrogate", file(object({entry("\\ud800", "U8", "4", "0,4")}), 4), "surrogate pair"},
      {"deep nesting",
       file("{\"__metadata__\":" + std::string(100000, '[') + std::string(100000, ']') + "}"),
       "nested deeper than 4"},
  };
}

std::vector<HostileCase> broken_names_and_metadata() {
  const std::string t = entry("t", "U8", "4", "0,4");
  return {
      {"duplicate name", file(object({t, t}), 4), "\"t\""},
      {"duplicate name, other dtype", file(object({t, entry("t", "I8", "4", "0,4")}), 4), "\"t\""},
      {"duplicate name, escaped", file(object({t, entry("\\u0074", "U8", "4", "0,4")}), 4),
       "\"t\""},
      {"duplicate metadata", file(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__"},
      {"duplicate key in metadata", file(R"({"__metadata__":{"a":"1","a":"2"}})"), "\"a\""},
      {"duplicate field", one(R"({"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]})"),
       "dtype"},
      {"NUL in a name", file(object({entry("a\\u0000b", "U8", "4", "0,4")}), 4),
       "control characters"},
      {"line end in a name", file(object({entry("a\\n", "U8", "4", "0,4")}), 4),
       "control characters"},
      {"escape character in a name", file(object({entry("\\u001b[2J", "U8", "4", "0,4")}), 4),
       "control characters"},
      {"DEL in a name", file(object({entry("a\x7f", "U8", "4", "0,4")}), 4), "control characters"},
      {"empty name", file(object({entry("", "U8", "4", "0,4")}), 4), "is empty"},
      {"metadata of numbers", file(R"({"__metadata__":{"a":1}})"), "__metadata__"},
      {"metadata in metadata", file(R"({"__metadata__":{"a":{"b":"c"}}})"), "__metadata__"},
      {"metadata as text", file(R"({"__metadata__":"x"})"), "expected an object of strings"},
  };
}

std::vector<HostileCase> broken_tensors() {
  return {
      {"tensor is null", one("null"), "expected an object"},
      {"tensor is an array", one("[]"), "expected an object"},
      {"no dtype", one(R"({"shape":[4],"data_offsets":[0,4]})"), "dtype"},
      {"no shape", one(R"({"dtype":"U8","data_offsets":[0,4]})"), "shape"},
      {"no offsets", one(R"({"dtype":"U8","shape":[4]})"), "data_offsets"},
      {"unknown field", one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1})"),
       "unknown field"},
      {"dtype in lower case", one(R"({"dtype":"u8","shape":[4],"data_offsets":[0,4]})"),
       "expected one of F32"},
      {"dtype 8", one(R"({"dtype":8,"shape":[4],"data_offsets":[0,4]})"), "dtype"},
      {"sub-byte F4", one(R"({"dtype":"F4","shape":[8],"data_offsets":[0,4]})"),
       "expected one of F32"},
      {"sub-byte F6_E2M3", one(R"({"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]})"),
       "expected one of F32"},
      {"sub-byte I4", one(R"({"dtype":"I4","shape":[8],"data_offsets":[0,4]})"),
       "expected one of F32"},
      {"dtype that is not supported",
       one(R"({"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]})"), "expected one of F32"},
  };
}

std::vector<HostileCase> broken_sizes() {
  return {
      {"shape is a number", one(R"({"dtype":"U8","shape":4,"data_offsets":[0,4]})"),
       "expected an array"},
      {"negative size", one(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})"), "shape"},
      {"two negative sizes", one(R"({"dtype":"U8","shape":[-2,-2],"data_offsets":[0,4]})"),
       "shape"},
      {"size 4.0", one(R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})"), "shape"},
      {"size 4e0", one(R"({"dtype":"U8","shape":[4e0],"data_offsets":[0,4]})"), "shape"},
      {"size as text", one(R"({"dtype":"U8","shape":["4"],"data_offsets":[0,4]})"), "shape"},
      {"size null", one(R"({"dtype":"U8","shape":[null],"data_offsets":[0,4]})"), "shape"},
      {"size 2^63", one(R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4]})"),
       "shape"},
      {"sizes that wrap to 4",
       one(R"({"dtype":"U8","shape":[4611686018427387905,4,2],"data_offsets":[0,4]})"), "64 bits"},
      {"bytes that wrap to 0",
       one(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"), "64 bits"},
      {"65 dims",
       one(R"({"dtype":"U8","shape":[4)" + repeated(",1", 64) + R"(],"data_offsets":[0,4]})"),
       "at most 64 dims"},
      {"one offset", one(R"({"dtype":"U8","shape":[4],"data_offsets":[4]})"),
       "expected [begin, end]"},
      {"three offsets", one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4,4]})"),
       "expected [begin, end]"},
      {"negative offset", one(R"({"dtype":"U8","shape":[4],"data_offsets":[-4,0]})"),
       "data_offsets"},
      {"offsets reversed", one(R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})"),
       "need 4 bytes"},
      {"offsets above 2^63",
       one(R"({"dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,18446744073709551616]})"),
       "data_offsets"},
      {"offsets near 2^63",
       one(R"({"dtype":"U8","shape":[4],"data_offsets":[9223372036854775803,9223372036854775807]})"),
       "there is a hole"},
      {"shape larger than its bytes", one(R"({"dtype":"U8","shape":[5],"data_offsets":[0,4]})"),
       "need 5 bytes"},
      {"shape smaller than its bytes", one(R"({"dtype":"U8","shape":[3],"data_offsets":[0,4]})"),
       "need 3 bytes"},
      {"element size forgotten", one(R"({"dtype":"F16","shape":[4],"data_offsets":[0,4]})"),
       "need 8 bytes"},
  };
}

std::vector<HostileCase> broken_coverage() {
  const auto two = [](const std::string& a, const std::string& b, size_t data) {
    return file(object({entry("a", "U8", "2", a), entry("b", "U8", "2", b)}), data);
  };
  return {
      {"hole at the start", file(object({entry("t", "U8", "4", "1,5")}), 5), "there is a hole"},
      {"hole in the middle", two("0,2", "3,5", 5), "there is a hole"},
      {"bytes left at the end", two("0,2", "2,4", 5),
       "has 5 bytes of data; its tensors need 4; get the file again"},
      {"data one byte short", two("0,2", "2,4", 3), "is truncated; get the file again"},
      {"no data", two("0,2", "2,4", 0), "is truncated"},
      {"overlap", two("0,2", "1,3", 3), "it overlaps another tensor"},
      {"same bytes twice", two("0,2", "0,2", 2), "it overlaps another tensor"},
      {"empty tensor inside another",
       file(object({entry("a", "U8", "4", "0,4"), entry("e", "U8", "0", "2,2")}), 4),
       "it overlaps another tensor"},
      {"empty tensor after the end",
       file(object({entry("a", "U8", "4", "0,4"), entry("e", "U8", "0", "9,9")}), 4),
       "there is a hole"},
      {"no tensors but data", file("{}", 1), "has 1 bytes of data; its tensors need 0"},
  };
}

/// Many empty tensors.
std::string empties(size_t count) {
  std::vector<std::string> entries;
  for (size_t i = 0; i < count; ++i) entries.push_back(entry(str("a", i), "U8", "0", "0,0"));
  return file(object(entries));
}

std::vector<HostileCase> bombs() {
  const auto metadata = [](size_t bytes) {
    return file(R"({"__metadata__":{"a":")" + std::string(bytes, 'x') + R"("}})");
  };
  return {
      {"8,000 empty tensors", "", "", [] { return empties(8000); }},
      {"100,000 empty tensors", "", "more than 262144 values", [] { return empties(100'000); }},
      {"a million empty tensors", "", "expected 1 to 16777216", [] { return empties(1'000'000); }},
      {"metadata of 15 MB", "", "", [=] { return metadata(15'000'000); }},
      {"metadata of 100 MB", "", "expected 1 to 16777216", [=] { return metadata(99'999'900); }},
      {"15 MB of spaces", "", "", [] { return file("{}" + std::string(15'000'000, ' ')); }},
      {"100 MB of spaces", "", "expected 1 to 16777216",
       [] { return file("{}" + std::string(99'999'998, ' ')); }},
      {"a shape of a million sizes", "", "more than 262144 values",
       [] { return one(R"({"dtype":"U8","shape":[)" + repeated("1,", 1'000'000) + "1]}"); }},
      {"a shape of 2,001 dims",
       one(R"({"dtype":"U8","shape":[)" + repeated("1,", 2000) + R"(4],"data_offsets":[0,4]})"),
       "at most 64 dims"},
      {"250 names of 60 KB", "", "",
       [] {
         std::vector<std::string> entries;
         for (int i = 0; i < 250; ++i) {
           entries.push_back(entry(std::to_string(i) + std::string(60'000, 'n'), "U8", "0", "0,0"));
         }
         return file(object(entries));
       }},
      {"a name of 15 MB", "", "a tensor's name has 15000000 bytes",
       [] { return file(object({entry(std::string(15'000'000, 'n'), "U8", "4", "0,4")}), 4); }},
  };
}

std::vector<HostileCase> surrogates() {
  const auto named = [](const std::string& name) {
    return file(object({entry(name, "U8", "4", "0,4")}), 4);
  };
  return {
      {"a pair", named("\\ud83d\\ude00"), ""},
      {"a pair the wrong way round", named("\\ude00\\ud83d"), "half of a surrogate pair"},
      {"a high half before a letter", named("\\ud83da"), "half of a surrogate pair"},
      {"two high halves", named("\\ud83d\\ud83d"), "half of a surrogate pair"},
      {"a half as UTF-8", named("\xED\xA0\x80"), "not valid UTF-8"},
      {"above U+10FFFF", named("\xF4\x90\x80\x80"), "not valid UTF-8"},
      {"duplicates, one an escaped pair",
       file(object({entry("\xF0\x9F\x98\x80", "U8", "2", "0,2"),
                    entry("\\ud83d\\ude00", "U8", "2", "2,4")}),
            4),
       "occurs twice"},
      {"a truncated escape", named("\\u00"), "hexadecimal digit"},
  };
}

}  // namespace

HostileSet safetensors_set() {
  HostileSet set{
      .kind = "safetensors_header",
      .file_name = "model.safetensors",
      .least = 80,
      .seed = file(object({entry("a", "F32", "2", "0,8"), entry("b", "U8", "3", "8,11")}), 11)};
  for (const auto& cases :
       {accepted_cases(), broken_frames(), broken_names_and_metadata(), broken_tensors(),
        broken_sizes(), broken_coverage(), bombs(), surrogates()}) {
    set.cases.insert(set.cases.end(), cases.begin(), cases.end());
  }
  set.read = [](const std::filesystem::path& folder) {
    const Safetensors opened = Safetensors::open(folder);
    for (const StoredTensor& tensor : opened.tensors()) {
      std::vector<std::byte> bytes(block_bytes(tensor, {}));
      opened.read_block(tensor, {}, bytes);
    }
  };
  return set;
}

}  // namespace cleave::test
