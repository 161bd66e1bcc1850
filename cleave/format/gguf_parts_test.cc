// Oracle: files that are written here from the specification, with the keys and names of
// llama.cpp's gguf-split.
#include "cleave/format/gguf_parts.h"

#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gguf_bytes.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::gguf_parts_test {
namespace {

using test::TempFolder;
using test::gguf::number;
using test::gguf::text;
using testing::ElementsAre;
using testing::HasSubstr;

std::string float_bytes(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return number(bits, 4);
}

/// What a part says: -1 leaves a key out.
struct Part {
  int64_t index = 0, count = 2;
  std::vector<std::string> tensors;  ///< each has two fp32 numbers
  float first = 0;                   ///< the numbers count up from this one
  int64_t num_tensors = -1;          ///< of all parts
};

std::string bytes_of(const Part& part) {
  std::string entries;
  uint64_t num_entries = 0;
  const auto add = [&](const std::string& key, uint64_t type, int64_t value, size_t bytes) {
    if (value < 0) return;
    ++num_entries;
    entries += text(key) + number(type, 4) + number(static_cast<uint64_t>(value), bytes);
  };
  add("split.no", 2, part.index, 2);
  add("split.count", 2, part.count, 2);
  add("split.tensors.count", 5, part.num_tensors, 4);
  std::string out = "GGUF" + number(3, 4) + number(part.tensors.size(), 8) + number(num_entries, 8);
  out += entries;
  for (size_t i = 0; i < part.tensors.size(); ++i) {
    out += text(part.tensors[i]) + number(1, 4) + number(2, 8) + number(0, 4) + number(32 * i, 8);
  }
  float next = part.first;
  for (size_t i = 0; i < part.tensors.size(); ++i) {
    out.resize((out.size() + 31) / 32 * 32);
    for (int k = 0; k < 2; ++k) out += float_bytes(next++);
  }
  out.resize((out.size() + 31) / 32 * 32);
  return out;
}

void write(const std::filesystem::path& path, const Part& part) {
  std::ofstream(path, std::ios::binary) << bytes_of(part);
}

constexpr const char* kFirst = "m-00001-of-00002.gguf";
constexpr const char* kSecond = "m-00002-of-00002.gguf";

/// Writes two parts, and returns what opening the first one throws.
std::string problem_of(const Part& first, const Part& second) {
  const TempFolder folder;
  write(folder / kFirst, first);
  write(folder / kSecond, second);
  return test::thrown_by([&] { (void)Gguf::open(folder / kFirst); }).what();
}

std::vector<float> values_of(const Gguf& file, const std::string& name) {
  std::vector<float> values(2);
  file.read_block(name, {}, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(GgufParts, FirstPart_OpensAllOfThem) {
  const TempFolder folder;
  write(folder / "m-00001-of-00003.gguf", {0, 3, {"a", "b"}, 1, 5});
  write(folder / "m-00002-of-00003.gguf", {1, 3, {"c"}, 5});
  write(folder / "m-00003-of-00003.gguf", {2, 3, {"d", "e"}, 7});
  const Gguf file = Gguf::open(folder / "m-00001-of-00003.gguf");
  EXPECT_THAT(file.file_names(), ElementsAre("m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                             "m-00003-of-00003.gguf"));
  EXPECT_EQ(file.path(), (folder / "m-00001-of-00003.gguf").string());
  EXPECT_EQ(file.metadata().int_at("split.tensors.count"), 5);
  EXPECT_EQ(file.list().size(), 5U);
  EXPECT_THAT(values_of(file, "a"), ElementsAre(1, 2));
  EXPECT_THAT(values_of(file, "b"), ElementsAre(3, 4));
  EXPECT_THAT(values_of(file, "c"), ElementsAre(5, 6));
  EXPECT_THAT(values_of(file, "e"), ElementsAre(9, 10));
}

// As with gguf-split --no-tensor-first-split.
TEST(GgufParts, FirstPartWithoutTensors_HasThoseOfTheOthers) {
  const TempFolder folder;
  write(folder / kFirst, {0, 2, {}, 0, 1});
  write(folder / kSecond, {1, 2, {"a"}, 3});
  EXPECT_THAT(values_of(Gguf::open(folder / kFirst), "a"), ElementsAre(3, 4));
}

TEST(GgufParts, WholeModel_MayHaveAnyName) {
  const TempFolder folder;
  write(folder / "m-00002-of-00002.gguf", {0, 1, {"a"}, 3});
  EXPECT_THAT(values_of(Gguf::open(folder / "m-00002-of-00002.gguf"), "a"), ElementsAre(3, 4));
}

TEST(GgufParts, MissingPart_IsNamed) {
  const TempFolder folder;
  write(folder / "m-00001-of-00003.gguf", {0, 3, {"a"}, 0, 3});
  write(folder / "m-00003-of-00003.gguf", {2, 3, {"c"}});
  const Error error = test::thrown_by([&] { (void)Gguf::open(folder / "m-00001-of-00003.gguf"); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr((folder / "m-00002-of-00003.gguf").string() +
                                      " is not there; it is part 2 of 3 of the model in "
                                      "m-00001-of-00003.gguf; copy it to the others"));
}

TEST(GgufParts, AnotherPartThanTheFirst_IsRefusedWithTheNameOfTheFirst) {
  const TempFolder folder;
  write(folder / kSecond, {1, 2, {"a"}});
  EXPECT_THAT(test::thrown_by([&] { (void)Gguf::open(folder / kSecond); }).what(),
              HasSubstr("m-00002-of-00002.gguf is part 2 of 2 of a model; give the first one, "
                        "m-00001-of-00002.gguf"));
  write(folder / "renamed.gguf", {1, 2, {"a"}});
  EXPECT_THAT(test::thrown_by([&] { (void)Gguf::open(folder / "renamed.gguf"); }).what(),
              HasSubstr("renamed.gguf is part 2 of 2 of a model; give the first one, "
                        "NAME-00001-of-00002.gguf"));
}

TEST(GgufParts, FirstPartWithAnotherName_IsRefused) {
  const TempFolder folder;
  write(folder / "m.gguf", {0, 2, {"a"}, 0, 1});
  EXPECT_THAT(test::thrown_by([&] { (void)Gguf::open(folder / "m.gguf"); }).what(),
              HasSubstr("its name does not end in -00001-of-00002.gguf"));
}

TEST(GgufParts, PartsThatDoNotBelongTogether_AreRefused) {
  const Part first = {0, 2, {"a"}, 0, 2};
  const std::pair<Part, const char*> seconds[] = {
      {{0, 2, {"b"}}, "m-00002-of-00002.gguf: metadata 'split.no': it is 0; expected 1"},
      {{1, 3, {"b"}}, "m-00002-of-00002.gguf: metadata 'split.count': it is 3; expected 2"},
      {{1, -1, {"b"}}, "m-00002-of-00002.gguf: metadata 'split.count': it is missing"},
      {{-1, 2, {"b"}}, "m-00002-of-00002.gguf: metadata 'split.no': it is missing"},
      {{1, 2, {"a"}}, "m-00002-of-00002.gguf: tensor 'a' is in the file twice"},
      {{1, 2, {}}, "m-00001-of-00002.gguf: metadata 'split.tensors.count': it is 2; the 2 parts"}};
  for (const auto& [second, problem] : seconds) {
    EXPECT_THAT(problem_of(first, second), HasSubstr(problem));
  }
  EXPECT_THAT(problem_of({0, 2, {"a"}}, {1, 2, {"b"}}),
              HasSubstr("metadata 'split.tensors.count': it is missing"));
}

TEST(GgufParts, NumbersBeyondTheirLimits_AreRefused) {
  const auto problem = [](const Part& part) { return problem_of(part, {}); };
  EXPECT_THAT(problem({0, 1025, {}}),
              HasSubstr("'split.count': it is 1025; expected at most 1024"));
  EXPECT_THAT(problem({2, 2, {}}), HasSubstr("'split.no': it is 2; expected 0 to 1"));
  EXPECT_THAT(problem({-1, 2, {}}), HasSubstr("'split.no': it is missing"));
}

}  // namespace
}  // namespace cleave::gguf_parts_test
