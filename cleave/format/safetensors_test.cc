#include "cleave/format/safetensors.h"

#include <filesystem>
#include <fstream>
#include <numeric>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/hash.h"
#include "cleave/format/block.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/format/tensor_source.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::safetensors_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::thrown_by;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

/// Writes length, the given header, and the data bytes 0, 1, 2, ...
void write_by_hand(const fs::path& path, const std::string& header, size_t data_bytes) {
  std::ofstream out(path, std::ios::binary);
  for (size_t i = 0, size = header.size(); i < 8; ++i, size >>= 8) {
    out.put(static_cast<char>(size & 0xff));
  }
  out << header;
  for (size_t i = 0; i < data_bytes; ++i) out.put(static_cast<char>(i));
  ASSERT_TRUE(out.flush());
}

std::vector<int> read_bytes(const Safetensors& set, std::string_view name,
                            const std::vector<Slice>& slices = {}) {
  const StoredTensor& tensor = set.at(name);
  std::vector<std::byte> bytes(block_bytes(tensor, slices));
  set.read_block(tensor, slices, bytes);
  std::vector<int> values;
  for (const std::byte b : bytes) values.push_back(static_cast<int>(b));
  return values;
}

TEST(Safetensors, FileMadeByHand_GivesTensorsMetadataAndBlocks) {
  const TempFolder folder;
  const std::string header =
      R"({"b":{"dtype":"U8","shape":[3,4],"data_offsets":[2,14]},"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"F16","shape":[],"data_offsets":[0,2]},)"
      R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[14,14]}}  )";
  write_by_hand(folder / "x.safetensors", header, 14);

  const Safetensors set = Safetensors::open(folder / "x.safetensors");
  ASSERT_EQ(set.tensors().size(), 3u);
  EXPECT_EQ(set.tensors()[0].name, "a");
  EXPECT_EQ(set.tensors()[0].begin, 8 + header.size());
  EXPECT_EQ(set.at("b").dtype, DType::kU8);
  EXPECT_THAT(set.at("b").shape, ElementsAre(3, 4));
  EXPECT_EQ(set.files()[0].metadata.at("format"), "pt");

  EXPECT_THAT(read_bytes(set, "a"), ElementsAre(0, 1));
  EXPECT_THAT(read_bytes(set, "none"), ElementsAre());
  EXPECT_THAT(read_bytes(set, "b", {{0, {{1, 3}}}}), ElementsAre(6, 7, 8, 9, 10, 11, 12, 13));
  EXPECT_THAT(read_bytes(set, "b", {{1, {{0, 1}, {3, 4}}}}), ElementsAre(2, 5, 6, 9, 10, 13));
  EXPECT_THAT(read_bytes(set, "b", {{0, {{2, 3}}}, {1, {{1, 3}}}}), ElementsAre(11, 12));
}

TEST(Safetensors, UnknownName_SuggestsTheNearest) {
  const TempFolder folder;
  write_by_hand(folder / "model.safetensors",
                R"({"model.norm.weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  const Safetensors set = Safetensors::open(folder.path());
  EXPECT_EQ(set.find("norm.weight"), nullptr);
  EXPECT_EQ(set.path(), folder.path().string());
  EXPECT_THAT(thrown_by([&] { (void)set.at("norm.weight"); }).what(),
              HasSubstr("there is no tensor 'norm.weight'; did you mean 'model.norm.weight'"));
}

TEST(OpenTensors, PartsWithoutTheirIndex_AreRefusedWithItsName) {
  for (const std::string end : {".safetensors", ".bin"}) {
    const TempFolder folder;
    const std::string stem = end == ".bin" ? "pytorch_model" : "model";
    std::ofstream(folder / (stem + "-00001-of-00002" + end)) << "x";
    const Error error = thrown_by([&] { (void)open_tensors(folder.path(), "model"); });
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.what(), HasSubstr(" has files such as " + stem + "-00001-of-00002" + end +
                                        " and no " + stem + end + ".index.json"));
  }
}

TEST(Safetensors, FolderWithoutAModel_IsAnIoErrorNamingBothFiles) {
  const TempFolder folder;
  EXPECT_FALSE(has_safetensors(folder.path()));
  const Error error = thrown_by([&] { Safetensors::open(folder.path()); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(),
              HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
}

TEST(Safetensors, FileTruncatedAfterOpening_IsAFormatErrorAndNotASignal) {
  const TempFolder folder;
  const std::string header = R"({"t":{"dtype":"U8","shape":[100,100],"data_offsets":[0,10000]}})";
  write_by_hand(folder / "model.safetensors", header, 10000);
  const Safetensors set = Safetensors::open(folder.path());
  fs::resize_file(folder / "model.safetensors", header.size() + 5000);
  const Error whole = thrown_by([&] { read_bytes(set, "t"); });
  EXPECT_EQ(whole.code(), Code::kFormat);
  EXPECT_THAT(whole.what(), HasSubstr("is truncated"));
  const Error block = thrown_by([&] { read_bytes(set, "t", {{1, {{7, 9}}}}); });
  EXPECT_EQ(block.code(), Code::kFormat);
  EXPECT_THAT(read_bytes(set, "t", {{0, {{0, 1}}}}).size(), 100u);
}

// -- writing ------------------------------------------------------------------------------------

std::vector<TensorInfo> some_tensors() {
  return {{"embed.weight", DType::kBf16, {10, 6}}, {"flag", DType::kBool, {3}},
          {"norm.weight", DType::kF32, {6}},       {"proj.weight", DType::kF64, {4, 6}},
          {"nothing", DType::kF32, {0, 6}},        {"step", DType::kI64, {}}};
}

/// The expected bytes of a tensor, in closed form.
std::vector<std::byte> bytes_of(const TensorInfo& tensor) {
  std::vector<std::byte> bytes(num_elements(tensor.shape, "t") *
                               static_cast<uint64_t>(item_bytes(tensor.dtype)));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(hash_bytes(tensor.name) + i * 7);
  }
  return bytes;
}

/// The bytes of a slice, taken from the whole tensor.
std::vector<std::byte> slice_bytes(const TensorInfo& tensor, const Slice& slice) {
  const auto whole = bytes_of(tensor);
  BlockWalk walk(tensor.shape, item_bytes(tensor.dtype), std::span(&slice, 1));
  std::vector<std::byte> bytes;
  while (const auto piece = walk.next()) {
    const auto from = whole.begin() + static_cast<std::ptrdiff_t>(piece->offset);
    bytes.insert(bytes.end(), from, from + static_cast<std::ptrdiff_t>(piece->bytes));
  }
  return bytes;
}

/// Two ranks write the model: matrices in uneven slices of dim `dim`, the other tensors by rank 0.
void write_model(const fs::path& target, const SafetensorsPlan& plan, int64_t dim) {
  FolderWriter folder(target);
  plan.create_files(folder);
  for (int64_t rank = 0; rank < 2; ++rank) {
    SafetensorsWriter writer(folder.path(), plan);
    for (const TensorInfo& tensor : some_tensors()) {
      if (tensor.shape.size() < 2) {
        if (rank == 0) writer.write_block(tensor.name, {}, bytes_of(tensor));
        continue;
      }
      const int64_t size = tensor.shape[static_cast<size_t>(dim)];
      const Slice slice = rank == 0 ? Slice{dim, {{0, size / 3}, {size / 2, size}}}
                                    : Slice{dim, {{size / 3, size / 2}}};
      writer.write_block(tensor.name, {slice}, slice_bytes(tensor, slice));
    }
    for (const WrittenBlock& block : writer.finish()) EXPECT_NE(block.checksum, 0u);
  }
  folder.commit();
}

void expect_model_is_whole(const Safetensors& set) {
  ASSERT_EQ(set.tensors().size(), some_tensors().size());
  for (const TensorInfo& tensor : some_tensors()) {
    const StoredTensor& stored = set.at(tensor.name);
    EXPECT_EQ(stored.dtype, tensor.dtype);
    EXPECT_EQ(stored.shape, tensor.shape);
    EXPECT_EQ(stored.begin % static_cast<uint64_t>(item_bytes(tensor.dtype)), 0u) << tensor.name;
    std::vector<std::byte> bytes(stored.end - stored.begin);
    set.read_block(stored, {}, bytes);
    EXPECT_EQ(bytes, bytes_of(tensor)) << tensor.name;
  }
}

TEST(SafetensorsWriter, TwoRanksOneFile_ReadsBackWhole) {
  const TempFolder folder;
  for (const int64_t dim : {0, 1}) {
    const fs::path target = folder / str("model", dim);
    const SafetensorsPlan plan(some_tensors());
    ASSERT_EQ(plan.files().size(), 1u);
    EXPECT_EQ(plan.files()[0].name, "model.safetensors");
    EXPECT_EQ(plan.files()[0].head.size() % 8, 0u);
    write_model(target, plan, dim);
    EXPECT_EQ(fs::file_size(target / "model.safetensors"), plan.total_bytes());
    expect_model_is_whole(Safetensors::open(target));
  }
}

TEST(SafetensorsWriter, SmallFileLimit_GivesNumberedFilesAndAnIndex) {
  const TempFolder folder;
  SafetensorsPlanOptions options;
  options.max_file_bytes = 130;
  const SafetensorsPlan plan(some_tensors(), options);
  // 120 + 3 bytes fit, 24 more do not. 192 more do not fit with the 24. 192 exceed the limit alone.
  ASSERT_EQ(plan.files().size(), 4u);
  EXPECT_EQ(plan.files()[0].name, "model-00001-of-00004.safetensors");
  EXPECT_EQ(plan.files()[3].name, "model-00004-of-00004.safetensors");
  EXPECT_THAT(plan.index_json(), HasSubstr("\"total_size\": 347"));
  EXPECT_THAT(plan.index_json(),
              HasSubstr("\"proj.weight\": \"model-00003-of-00004.safetensors\""));
  write_model(folder / "m", plan, 0);
  const Safetensors set = Safetensors::open(folder / "m");
  EXPECT_EQ(set.files().size(), 4u);
  expect_model_is_whole(set);
}

TEST(SafetensorsWriter, WrongSizesAndNames_AreRefused) {
  const TempFolder folder;
  FolderWriter target(folder / "m");
  const SafetensorsPlan plan(some_tensors());
  plan.create_files(target);
  SafetensorsWriter writer(target.path(), plan);
  const std::vector<std::byte> bytes(23);
  EXPECT_THAT(thrown_by([&] { writer.write_block("norm.weight", {}, bytes); }).what(),
              HasSubstr("the block has 24 bytes; 23 were given"));
  EXPECT_EQ(thrown_by([&] { writer.write_block("norm", {}, bytes); }).code(), Code::kUsage);
  auto doubled = some_tensors();
  doubled.push_back(doubled[0]);
  EXPECT_EQ(thrown_by([&] { SafetensorsPlan{doubled}; }).code(), Code::kUsage);
}

TEST(SafetensorsPlan, NoTensors_IsAReadableFile) {
  const TempFolder folder;
  FolderWriter target(folder / "m");
  SafetensorsPlan(std::vector<TensorInfo>{}).create_files(target);
  target.commit();
  EXPECT_TRUE(Safetensors::open(folder / "m").tensors().empty());
}

// -- the index ----------------------------------------------------------------------------------

class Index : public testing::Test {
 protected:
  void SetUp() override {
    write_by_hand(folder / "one.safetensors",
                  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
    write_by_hand(folder / "two.safetensors",
                  R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  }
  Error error_with(const std::string& weight_map) {
    write_index(weight_map);
    return thrown_by([&] { Safetensors::open(folder.path()); });
  }
  void write_index(const std::string& weight_map) {
    std::ofstream(folder / "model.safetensors.index.json")
        << R"({"metadata":{"total_size":2},"weight_map":)" << weight_map << "}";
  }
  TempFolder folder;
};

TEST_F(Index, NamesOfFilesInTheFolder_GiveOneListOfTensors) {
  write_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  const Safetensors set = Safetensors::open(folder.path());
  EXPECT_EQ(set.files().size(), 2u);
  EXPECT_EQ(set.at("b").file, 1u);
}

TEST_F(Index, PathsInsteadOfNames_AreRefusedBeforeAnyOpen) {
  const std::string long_name(256, 'x');
  for (const std::string name :
       {"../one.safetensors", "/one.safetensors", "x/../one.safetensors", "./one.safetensors", "..",
        ".one", "", "a\\\\b", "one\\u0000.safetensors", "one\\n", long_name.c_str()}) {
    const Error error = error_with(R"({"a":")" + name + R"("})");
    EXPECT_EQ(error.code(), Code::kFormat) << name;
    EXPECT_THAT(error.what(), HasSubstr("not a path")) << name;
  }
}

TEST_F(Index, LinksPipesAndFolders_AreRefused) {
  const fs::path outside = folder.path().string() + "_outside";
  fs::rename(folder / "one.safetensors", outside);
  fs::create_symlink(outside, folder / "link.safetensors");
  EXPECT_THAT(error_with(R"({"a":"link.safetensors"})").what(), HasSubstr("symbolic link"));
  fs::remove(outside);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_with(R"({"a":"pipe"})").what(), HasSubstr("a device, pipe or socket"));
  fs::create_directory(folder / "deep");
  EXPECT_THAT(error_with(R"({"a":"deep"})").what(), HasSubstr("is a folder"));
}

// A download that was interrupted leaves the small files, and perhaps some of the parts. A link of
// the cache may lead to a file that is missing.
TEST(HubSnapshot, MissingWeights_NameTheCommandThatDownloadsThem) {
  const TempFolder cache;
  const fs::path snapshot = cache / "models--org--name/snapshots/abc";
  fs::create_directories(snapshot);
  const auto message = [&] {
    const Error error = thrown_by([&] { (void)open_tensors(snapshot, "model"); });
    EXPECT_EQ(error.code(), Code::kIo);
    return std::string(error.what());
  };
  const std::string command = "; download it with: hf download org/name";
  EXPECT_THAT(message(), EndsWith("expected a model folder" + command));
  const std::string part = "model-00001-of-00002.safetensors";
  write_by_hand(snapshot / part, R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  EXPECT_THAT(message(), EndsWith("copy it from where the files are from" + command));
  const std::string missing = "model-00002-of-00002.safetensors";
  std::ofstream(snapshot / "model.safetensors.index.json")
      << R"({"weight_map":{"a":")" << part << R"(","b":")" << missing << R"("}})";
  const std::string expected =
      "model.safetensors.index.json names " + missing +
      ": No such file or directory; copy it from where the files are from" + command;
  EXPECT_THAT(message(), EndsWith(expected));
  fs::create_symlink("../../blobs/" + std::string(64, 'a'), snapshot / missing);
  EXPECT_THAT(message(), EndsWith(expected));
}

TEST_F(Index, MissingFile_IsNamed) {
  const Error error = error_with(R"({"a":"missing.safetensors","b":"two.safetensors"})");
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_EQ(std::string(error.what()),
            (folder / "model.safetensors.index.json").string() +
                " names missing.safetensors: No such file or directory; copy it from where the "
                "files are from");
}

TEST_F(Index, DisagreementsWithTheFiles_AreNamed) {
  EXPECT_THAT(error_with(R"({"a":"two.safetensors","b":"two.safetensors"})").what(),
              HasSubstr("tensor 'a' is not in the file that the index names, two.safetensors"));
  EXPECT_THAT(error_with(R"({"a":"two.safetensors","b":"one.safetensors"})").what(),
              HasSubstr("the index has tensor 'a' in two.safetensors; it is in one.safetensors"));
  write_by_hand(folder / "two.safetensors",
                R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  EXPECT_THAT(error_with(R"({"a":"one.safetensors","b":"two.safetensors"})").what(),
              HasSubstr("tensor 'a' is both in"));
  EXPECT_THAT(error_with("{}").what(), HasSubstr("weight_map"));
  EXPECT_THAT(error_with(R"({"a":1})").what(), HasSubstr("weight_map.a"));
}

TEST_F(Index, TensorThatTheIndexLeavesOut_IsNamed) {
  write_by_hand(folder / "two.safetensors",
                R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                2);
  EXPECT_THAT(error_with(R"({"a":"one.safetensors","b":"two.safetensors"})").what(),
              HasSubstr("tensor 'c' of two.safetensors is missing from the index"));
}

}  // namespace
}  // namespace cleave::safetensors_test
