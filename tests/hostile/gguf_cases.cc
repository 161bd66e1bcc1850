#include <cstring>
#include <string>
#include <vector>

#include "cleave/base/str.h"
#include "cleave/format/gguf.h"
#include "tests/hostile/hostile.h"
#include "tests/support/gguf_bytes.h"

namespace cleave::test {
namespace {

using gguf::number;
using gguf::text;

/// A metadata entry of a type with these bytes.
std::string entry(const std::string& key, uint64_t type, const std::string& value) {
  return text(key) + number(type, 4) + value;
}

std::string array(uint64_t type, uint64_t count, const std::string& values) {
  return number(type, 4) + number(count, 8) + values;
}

/// Sizes in the file's order.
std::string tensor(const std::string& name, const std::vector<uint64_t>& sizes, uint64_t type,
                   uint64_t offset) {
  std::string out = text(name) + number(sizes.size(), 4);
  for (const uint64_t size : sizes) out += number(size, 8);
  return out + number(type, 4) + number(offset, 8);
}

struct Parts {
  std::vector<std::string> entries{}, tensors{};
  size_t data_bytes = 0;
  size_t alignment = 32;
};

std::string file(const Parts& parts) {
  std::string out =
      "GGUF" + number(3, 4) + number(parts.tensors.size(), 8) + number(parts.entries.size(), 8);
  for (const std::string& one : parts.entries) out += one;
  for (const std::string& one : parts.tensors) out += one;
  out.resize((out.size() + parts.alignment - 1) / parts.alignment * parts.alignment);
  return out + std::string(parts.data_bytes, '\1');
}

std::string header(uint64_t tensors, uint64_t entries, const std::string& rest = "") {
  return "GGUF" + number(3, 4) + number(tensors, 8) + number(entries, 8) + rest;
}

std::string one_entry(uint64_t type, const std::string& value) {
  return file({.entries = {entry("k", type, value)}});
}

std::string one_tensor(const std::vector<uint64_t>& sizes, uint64_t type, size_t data_bytes,
                       uint64_t offset = 0) {
  return file({.tensors = {tensor("t", sizes, type, offset)}, .data_bytes = data_bytes});
}

/// A valid file with everything; the last tensor has no padding, so that every truncation shows.
std::string seed() {
  return file(
      {.entries = {entry("general.architecture", 8, text("llama")),
                   entry("general.alignment", 4, number(64, 4)), entry("u8", 0, "a"),
                   entry("i16", 3, "ab"), entry("f32", 6, "abcd"), entry("bool", 7, "\1"),
                   entry("i64", 11, "abcdefgh"), entry("f64", 12, "abcdefgh"),
                   entry("s", 9, array(8, 2, text("x") + text("yz"))),
                   entry("n", 9, array(6, 2, "abcdefgh"))},
       .tensors = {tensor("a", {3, 2}, 0, 0), tensor("b", {2}, 1, 64), tensor("c", {32, 1}, 8, 128),
                   tensor("d", {32}, 2, 192), tensor("e", {256}, 12, 256),
                   tensor("f", {256}, 14, 448), tensor("g", {4}, 30, 704)},
       .data_bytes = 712,
       .alignment = 64});
}

std::vector<HostileCase> accepted() {
  return {
      {"no tensors", file({}), ""},
      {"version 2", changed(file({}), std::string("\3\0\0\0", 4), std::string("\2\0\0\0", 4)), ""},
      {"empty tensor", one_tensor({0}, 0, 0), ""},
      {"empty tensor with a huge dim", one_tensor({uint64_t{1} << 60, 0}, 0, 0), ""},
      {"scalar", one_tensor({}, 0, 4), ""},
      {"padding at the end", one_tensor({1}, 0, 32), ""},
      {"empty array", one_entry(9, array(8, 0, "")), ""},
      {"empty string", one_entry(8, text("")), ""}};
}

std::vector<HostileCase> broken_heads() {
  const std::string whole = file({});
  return {{"empty", "", "needs 4 bytes; only 0 are left, it is truncated"},
          {"three bytes", "GGU", "it is truncated"},
          {"another format", "GGML" + whole.substr(4), "does not begin with 'GGUF'"},
          {"version 1", "GGUF" + number(1, 4) + whole.substr(8), "has version 1; expected"},
          {"version 4", "GGUF" + number(4, 4) + whole.substr(8), "has version 4; expected"},
          {"big-endian", std::string("GGUF\0\0\0\3", 8) + whole.substr(8), "as if big-endian"},
          {"2^64 - 1 tensors", header(UINT64_MAX, 0), "expected at most 65536 of each"},
          {"2^64 - 1 entries", header(0, UINT64_MAX), "expected at most 65536 of each"},
          {"65536 tensors in no bytes", header(65536, 0), "it is truncated"},
          {"65536 entries in no bytes", header(0, 65536), "it is truncated"},
          {"bytes after the tensors", one_tensor({1}, 0, 33), "its tensors end at byte"},
          {"bytes after no tensors", file({}) + "x", "its tensors end at byte"}};
}

std::vector<HostileCase> broken_metadata() {
  return {
      {"key of 2^64 - 1 bytes", header(0, 1, number(UINT64_MAX, 8)), "expected at most 65535"},
      {"key of 65536 bytes", header(0, 1, text(std::string(65536, 'k'))), "expected at most 65535"},
      {"empty key", file({.entries = {entry("", 4, number(1, 4))}}), "printable ASCII"},
      {"key with a line end", file({.entries = {entry("a\nb", 4, number(1, 4))}}),
       "printable ASCII"},
      {"key that is not UTF-8", file({.entries = {entry("\xff", 4, number(1, 4))}}),
       "is not UTF-8 at byte 0"},
      {"a key twice", file({.entries = {entry("k", 4, number(1, 4)), entry("k", 4, number(2, 4))}}),
       "metadata 'k': the key occurs twice"},
      {"type 13", one_entry(13, number(0, 8)), "its type is 13; expected 0 to 12"},
      {"type 2^32 - 1", one_entry(UINT32_MAX, ""), "its type is 4294967295"},
      {"boolean 2", one_entry(7, "\2"), "a boolean is 2; expected 0 or 1"},
      {"unsigned above 63 bits", one_entry(10, number(UINT64_MAX, 8)), "does not fit in 63 bits"},
      {"string of 2^64 - 1 bytes", one_entry(8, number(UINT64_MAX, 8)),
       "metadata 'k' has 18446744073709551615 bytes; expected at most 67108864"},
      {"string of 2^40 bytes", one_entry(8, number(uint64_t{1} << 40, 8)),
       "expected at most 67108864"},
      {"string of 2^26 bytes in none", one_entry(8, number(uint64_t{1} << 26, 8)),
       "it is truncated"},
      {"strings of more than 2^26 bytes together",
       file({.entries = {entry("j", 8, text("abcd")),
                         entry("k", 8, number((uint64_t{1} << 26) - 3, 8))}}),
       "metadata 'k' has 67108861 bytes; expected at most 67108860"},
      {"string that is not UTF-8", one_entry(8, text("a\xc3(")), "is not UTF-8 at byte 1"},
      {"array of arrays", one_entry(9, array(9, 1, array(4, 0, ""))), "arrays of arrays"},
      {"array of type 13", one_entry(9, array(13, 1, "")), "its type is 13"},
      {"array of 2^64 - 1 strings", one_entry(9, array(8, UINT64_MAX, "")),
       "all arrays together may have"},
      {"array of 2^21 + 1 bytes", one_entry(9, array(0, (1U << 21) + 1, "")),
       "all arrays together may have"},
      {"array of 2^21 numbers in no bytes", one_entry(9, array(12, 1U << 21, "")),
       "it is truncated"},
      {"array of 2^21 strings in no bytes", one_entry(9, array(8, 1U << 21, "")),
       "it is truncated"},
      {"array of booleans with 3", one_entry(9, array(7, 2, "\1\3")), "a boolean is 3"},
      {"alignment 0", file({.entries = {entry("general.alignment", 4, number(0, 4))}}),
       "it is 0; expected a power of 2"},
      {"alignment 48", file({.entries = {entry("general.alignment", 4, number(48, 4))}}),
       "it is 48; expected a power of 2"},
      {"alignment 2^31", file({.entries = {entry("general.alignment", 4, number(1U << 31, 4))}}),
       "expected a power of 2"},
      {"alignment as text", file({.entries = {entry("general.alignment", 8, text("32"))}}),
       "expected an integer"}};
}

/// Files that say that they are parts of a model.
std::vector<HostileCase> broken_parts() {
  return {{"part of 2^63 - 1 parts",
           file({.entries = {entry("split.count", 11, number(INT64_MAX, 8))}}),
           "expected at most 1024"},
          {"part of -1 parts", file({.entries = {entry("split.count", 11, number(UINT64_MAX, 8))}}),
           "'split.count': it is -1"},
          {"part of parts as text", file({.entries = {entry("split.count", 8, text("2"))}}),
           "expected an integer"},
          {"part without a number", file({.entries = {entry("split.count", 2, number(2, 2))}}),
           "'split.no': it is missing"},
          {"part -1",
           file({.entries = {entry("split.count", 2, number(2, 2)),
                             entry("split.no", 11, number(UINT64_MAX, 8))}}),
           "'split.no': it is -1; expected 0 to 1"},
          {"first part with another name",
           file({.entries = {entry("split.count", 2, number(2, 2)),
                             entry("split.no", 2, number(0, 2))}}),
           "its name does not end in -00001-of-00002.gguf"}};
}

std::vector<HostileCase> broken_tensors() {
  const uint64_t top = uint64_t{1} << 63;
  return {
      {"no name", file({.tensors = {tensor("", {1}, 0, 0)}, .data_bytes = 4}), "is empty or has"},
      {"name with a zero", file({.tensors = {tensor(std::string(1, '\0'), {1}, 0, 0)}}),
       "is empty or has control characters"},
      {"name of 2^40 bytes", header(1, 0, number(uint64_t{1} << 40, 8)), "expected at most"},
      {"a name twice",
       file({.tensors = {tensor("t", {1}, 0, 0), tensor("t", {1}, 0, 32)}, .data_bytes = 36}),
       "tensor 't' is in the file twice"},
      {"5 dims", one_tensor({1, 1, 1, 1, 1}, 0, 4), "has 5 dims; expected at most 4"},
      {"2^32 - 1 dims", header(1, 0, text("t") + number(UINT32_MAX, 4)), "expected at most 4"},
      {"size of 2^63", one_tensor({top}, 0, 4), "does not fit in 63 bits"},
      {"sizes whose product overflows", one_tensor({1U << 31, 1U << 31, 1U << 31}, 0, 4),
       "does not fit in 64 bits"},
      {"bytes that overflow", one_tensor({uint64_t{1} << 62}, 0, 4), "does not fit in 64 bits"},
      {"decoded bytes that overflow", one_tensor({uint64_t{1} << 61}, 2, 4),
       "does not fit in 64 bits"},
      {"type Q5_K", one_tensor({256}, 13, 176), "tensor 't' is Q5_K, which is not read"},
      {"type IQ2_XXS", one_tensor({256}, 16, 66), "is IQ2_XXS, which is not read"},
      {"type 99", one_tensor({256}, 99, 4), "is type 99, which is not read"},
      {"row of no whole block", one_tensor({33}, 8, 68), "rows of 33 elements; Q8_0 needs"},
      {"row of half a block", one_tensor({128, 2}, 12, 144), "rows of 128 elements; Q4_K needs"},
      {"offset of 1", one_tensor({1}, 0, 64, 1), "begins at byte 1 of the data; expected 0"},
      {"offset of 2^64 - 32", one_tensor({1}, 0, 64, UINT64_MAX - 31), "expected 0"},
      {"overlapping tensors",
       file({.tensors = {tensor("a", {16}, 0, 0), tensor("b", {16}, 0, 32)}, .data_bytes = 128}),
       "begins at byte 32 of the data; expected 64"},
      {"hole between tensors",
       file({.tensors = {tensor("a", {1}, 0, 0), tensor("b", {1}, 0, 64)}, .data_bytes = 68}),
       "begins at byte 64 of the data; expected 32"},
      {"tensor beyond the file", one_tensor({1000}, 0, 4), "it is truncated"},
      {"tensor of 2^50 bytes", one_tensor({uint64_t{1} << 48}, 0, 4), "it is truncated"},
      {"no data", one_tensor({1}, 0, 0), "it is truncated"}};
}

/// Large files: the most values that the limits allow.
std::vector<HostileCase> large() {
  const auto strings = [] {
    return one_entry(9, array(8, 1U << 20, std::string(size_t{8} << 20, '\0')));
  };
  const auto bytes = [] {
    return one_entry(9, array(0, 1U << 21, std::string(size_t{2} << 20, 'b')));
  };
  const auto entries = [] {
    Parts parts;
    for (int i = 0; i < 65536; ++i) parts.entries.push_back(entry(str(i), 0, "x"));
    return file(parts);
  };
  const auto tensors = [] {
    Parts parts;
    for (int i = 0; i < 65536; ++i) parts.tensors.push_back(tensor(str(i), {0}, 0, 0));
    return file(parts);
  };
  return {{"2^20 empty strings", "", "", strings},
          {"2^21 bytes", "", "", bytes},
          {"65536 entries", "", "", entries},
          {"65536 tensors", "", "", tensors}};
}

}  // namespace

HostileSet gguf_set() {
  HostileSet set{.kind = "gguf",
                 .file_name = "model.gguf",
                 .least = 65,
                 .most_seconds = 0.5,
                 .most_mib = 48,
                 .seed = seed()};
  for (const auto& cases :
       {accepted(), broken_heads(), broken_metadata(), broken_parts(), broken_tensors(), large()}) {
    set.cases.insert(set.cases.end(), cases.begin(), cases.end());
  }
  set.read = [](const std::filesystem::path& folder) {
    const Gguf opened = Gguf::open(folder / "model.gguf");
    std::vector<std::byte> bytes;
    for (const GgufTensor& tensor : opened.tensors()) {
      bytes.resize(block_bytes(tensor, {}));
      opened.read_block(tensor.name, {}, bytes);
    }
  };
  return set;
}

}  // namespace cleave::test
