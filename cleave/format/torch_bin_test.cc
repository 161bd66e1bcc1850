#include "cleave/format/torch_bin.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/file/file.h"
#include "cleave/format/torch_writer.h"
#include "cleave/format/zip.h"
#include "tests/support/paths.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"
#include "tests/support/torch_files.h"

namespace cleave::torch_bin_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::thrown_by;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

const std::string kGolden = test::source_file("tests/golden/format");

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string bytes_from(int first, size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(first + static_cast<int>(i));
  return bytes;
}

std::vector<int> read_bytes(const TensorSource& source, std::string_view name,
                            const std::vector<Slice>& slices = {}) {
  std::vector<std::byte> bytes(block_bytes(source.at(name), slices));
  source.read_block(name, slices, bytes);
  std::vector<int> values;
  for (const std::byte b : bytes) values.push_back(static_cast<int>(b));
  return values;
}

// Oracle: the same model as safetensors; transformers wrote both.
TEST(TorchBin, FileOfTorch_HasTheSameTensorsAsItsSafetensorsTwin) {
  const fs::path folder = kGolden;
  const auto bin = open_tensors(folder / "pytorch_model.bin");
  const auto twin = open_tensors(folder);
  // The .bin file also has the tied output matrix, as another name for the same storage.
  ASSERT_EQ(bin->list().size(), twin->list().size() + 1);
  EXPECT_EQ(read_bytes(*bin, "lm_head.weight"), read_bytes(*bin, "transformer.wte.weight"));
  for (const TensorInfo& tensor : twin->list()) {
    SCOPED_TRACE(tensor.name);
    EXPECT_EQ(bin->at(tensor.name).shape, tensor.shape);
    EXPECT_EQ(bin->at(tensor.name).dtype, tensor.dtype);
    EXPECT_EQ(read_bytes(*bin, tensor.name), read_bytes(*twin, tensor.name));
    const std::vector<Slice> part = {{0, {{1, 3}, {5, 6}}}};
    EXPECT_EQ(read_bytes(*bin, tensor.name, part), read_bytes(*twin, tensor.name, part));
  }
}

// Several views of a 3 x 4 matrix of bytes 0..11; the expected elements are written by hand.
TEST(TorchBin, ViewsOfOneStorage_GiveTheElementsOfTheirStrides) {
  const TempFolder folder;
  const std::string same = test::storage("0", 12, "ByteStorage");
  const auto member = [&](const std::string& name, int64_t first, const std::vector<int64_t>& shape,
                          const std::vector<int64_t>& strides) {
    return test::text(name) + test::tensor(same, first, shape, strides) + "s";
  };
  write_bytes(folder / "x.bin",
              test::torch_file(
                  test::pickle("}" + member("whole", 0, {3, 4}, {4, 1}) +
                               member("turned", 0, {4, 3}, {1, 4}) + member("column", 2, {3}, {4}) +
                               member("one", 11, {}, {}) + member("none", 12, {0, 5}, {5, 1}) +
                               member("single", 5, {1, 2}, {INT64_MAX, 1}) +
                               member("cube", 0, {2, 2, 3}, {2, 1, 4})),
                  {bytes_from(0, 12)}));
  const TorchBin bin = TorchBin::open(folder / "x.bin");
  EXPECT_THAT(read_bytes(bin, "whole", {{0, {{1, 2}}}}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(read_bytes(bin, "turned"), ElementsAre(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11));
  EXPECT_THAT(read_bytes(bin, "turned", {{0, {{0, 1}, {2, 3}}}, {1, {{1, 3}}}}),
              ElementsAre(4, 8, 6, 10));
  EXPECT_THAT(read_bytes(bin, "turned", {{0, {{0, 0}, {1, 2}, {3, 3}}}}), ElementsAre(1, 5, 9));
  EXPECT_THAT(read_bytes(bin, "turned", {{1, {{2, 2}}}}), ElementsAre());
  EXPECT_THAT(read_bytes(bin, "column"), ElementsAre(2, 6, 10));
  EXPECT_THAT(read_bytes(bin, "one"), ElementsAre(11));
  EXPECT_THAT(read_bytes(bin, "none"), ElementsAre());
  EXPECT_THAT(read_bytes(bin, "single"), ElementsAre(5, 6));
  EXPECT_THAT(read_bytes(bin, "cube"), ElementsAre(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11));
}

SavedValue user_value() {
  const SavedValue weight = {SavedTensor::whole(DType::kBf16, {2, 3}, 0)};
  const SavedValue step = {SavedTensor::whole(DType::kI64, {}, 1)};
  const SavedList list = {{}, {true}, {int64_t{-5}}, {int64_t{1} << 40}, {0.1}};
  return {SavedDict{
      {std::string("model"),
       {SavedDict{{std::string("w"), weight}, {std::string("tied"), weight}}}},
      {std::string("epoch"), {int64_t{3}}},
      {std::string("note"), {std::string("\xC3\xBC \"x\"\n")}},
      {std::string("list"), {list}},
      {std::string("betas"), {SavedTuple{{{0.9}, {0.999}}}}},
      {std::string("state"), {SavedDict{{int64_t{0}, step}, {int64_t{-1}, {SavedDict{}}}}}}}};
}

void write_user_value(const fs::path& path) {
  const TorchPlan plan(user_value());
  TorchWriter writer(File::create(path), plan);
  const std::string weight = bytes_from(1, 12), step = test::number(77, 8);
  const auto bytes = std::as_bytes(std::span(weight));
  writer.write(1, std::as_bytes(std::span(step)));
  writer.write(0, bytes.first(5));
  writer.write(0, bytes.subspan(5));
  writer.finish();
  EXPECT_EQ(fs::file_size(path), plan.total_bytes());
}

TEST(TorchWriter, NestedValue_ReadsBackEqual) {
  const TempFolder folder;
  write_user_value(folder / "x.pt");
  const TorchFile file = TorchFile::open(folder / "x.pt");
  EXPECT_TRUE(file.value() == user_value());
  const auto* weight = file.value().find("model")->find("tied")->get<SavedTensor>();
  ASSERT_NE(weight, nullptr);
  std::vector<std::byte> row(6);
  file.read_block(*weight, std::vector<Slice>{{0, {{1, 2}}}}, row);
  EXPECT_EQ(static_cast<int>(row[0]), 7);
}

// Oracle: a stored file with these bytes, which torch.load(weights_only=True) reads as
// user_value(); make_torch_bin.py checks that. After a change of the format, store the new bytes
// and run it.
TEST(TorchWriter, NestedValue_HasTheBytesThatTorchReads) {
  const TempFolder folder;
  write_user_value(folder / "nested.pt");
  const std::string want = read_file(kGolden + "/nested.pt");
  EXPECT_TRUE(read_file(folder / "nested.pt") == want);
}

// Oracle: a file that torch.save wrote, with many kinds of values.
TEST(TorchFile, ValuesThatTorchWrote_AreRead) {
  const TorchFile file = TorchFile::open(kGolden + "/values.pt");
  const SavedValue& value = file.value();
  EXPECT_EQ(state_dict_tensors(*value.find("model"), "x").size(), 7U);
  const auto& groups = *value.find("optimizer")->find("param_groups")->get<SavedList>();
  EXPECT_EQ(*groups[0].find("lr")->get<double>(), 0.5);
  EXPECT_EQ(groups[0].find("betas")->get<SavedTuple>()->items.size(), 2U);
  EXPECT_EQ(*value.find("big")->get<int64_t>(), int64_t{1} << 62);
  EXPECT_EQ(*value.find("minus")->get<int64_t>(), -(int64_t{1} << 33));
  EXPECT_EQ(value.find("size")->get<SavedTuple>()->items.size(), 2U);
  std::vector<float> turned(6);
  file.read_block(*value.find("turned")->get<SavedTensor>(), {},
                  std::as_writable_bytes(std::span(turned)));
  EXPECT_THAT(turned, ElementsAre(0, 3, 1, 4, 2, 5));
}

// Headers above 4 GiB, in a sparse file.
TEST(Zip, EntriesAbove4GiB_ReadBackWhereTheyArePlanned) {
  const TempFolder folder;
  const uint64_t wide = (uint64_t{5} << 30) + 3;
  const ZipPlan plan({{"a", 3}, {"b", wide}, {"c", 7}});
  File file = File::create(folder / "x.zip");
  plan.write_headers(file, {1, 2, 3});
  file.close();
  EXPECT_EQ(fs::file_size(folder / "x.zip"), plan.total_bytes());
  const auto entries = read_zip(File::open_read(folder / "x.zip"));
  ASSERT_EQ(entries.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(entries[i].begin, plan.entries()[i].begin);
    EXPECT_EQ(entries[i].end, plan.entries()[i].end);
    EXPECT_EQ(entries[i].begin % 64, 0U);
  }
  EXPECT_GT(entries[2].begin, wide);
  if (!test::python_has("zipfile")) return;
  const std::string script =
      "import sys, zipfile\n"
      "z = zipfile.ZipFile(sys.argv[1])\n"
      "assert [i.file_size for i in z.infolist()] == [3, 5 * 2**30 + 3, 7]\n"
      "assert len(z.open('b').read(9)) == 9\n";
  const auto result = test::run_python(script, {(folder / "x.zip").string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// As PEFT wrote it until 2023, also beside a model.
TEST(TorchBin, OlderAdapter_IsOneFile) {
  const TempFolder folder;
  const auto write = [&](const std::string& name, const std::string& tensor) {
    write_bytes(folder / name,
                test::torch_file(
                    test::pickle(test::dict_of(
                        tensor, test::tensor(test::storage("0", 2, "CharStorage"), 0, {2}, {1}))),
                    {bytes_from(1, 2)}));
  };
  EXPECT_THAT(thrown_by([&] { open_tensors(folder.path(), "adapter_model"); }).what(),
              HasSubstr("has neither adapter_model.safetensors nor adapter_model.bin"));
  write("pytorch_model.bin", "weight");
  write("adapter_model.bin", "lora_A");
  EXPECT_THAT(read_bytes(*open_tensors(folder.path(), "adapter_model"), "lora_A"),
              ElementsAre(1, 2));
  EXPECT_THAT(read_bytes(*open_tensors(folder.path()), "weight"), ElementsAre(1, 2));
}

TEST(TorchBin, PartsWithAnIndex_AreOneSet) {
  const TempFolder folder;
  const auto part = [&](const std::string& name, const std::string& tensor, int first) {
    write_bytes(folder / name,
                test::torch_file(
                    test::pickle(test::dict_of(
                        tensor, test::tensor(test::storage("0", 2, "CharStorage"), 0, {2}, {1}))),
                    {bytes_from(first, 2)}));
  };
  part("pytorch_model-00001-of-00002.bin", "a", 1);
  part("pytorch_model-00002-of-00002.bin", "b", 3);
  const auto index = [&](const std::string& weight_map) {
    write_bytes(folder / "pytorch_model.bin.index.json", R"({"weight_map":{)" + weight_map + "}}");
  };
  const std::string a = R"("a":"pytorch_model-00001-of-00002.bin")";
  index(a + R"(,"b":"pytorch_model-00002-of-00002.bin")");
  const auto source = open_tensors(folder.path());
  EXPECT_EQ(source->file_names().size(), 2U);
  EXPECT_THAT(read_bytes(*source, "a"), ElementsAre(1, 2));
  EXPECT_THAT(read_bytes(*source, "b"), ElementsAre(3, 4));
  EXPECT_THAT(thrown_by([&] { (void)source->at("c"); }).what(),
              HasSubstr("there is no tensor 'c'"));

  const auto refusal = [&](const std::string& weight_map) {
    index(weight_map);
    const Error error = thrown_by([&] { open_tensors(folder.path()); });
    EXPECT_EQ(error.code(), Code::kFormat);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal(a + R"(,"b":"../secret.bin")"), HasSubstr("not a path"));
  EXPECT_THAT(refusal(a + R"(,"b":"pytorch_model-00001-of-00002.bin")"),
              HasSubstr("is not in the file that the index names"));
  index(R"("a":"missing.bin")");
  const Error missing = thrown_by([&] { open_tensors(folder.path()); });
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_THAT(missing.what(), HasSubstr("index.json names missing.bin: No such file"));
}

TEST(TorchBin, FolderWithoutAModel_NamesTheExpectedFiles) {
  const TempFolder folder;
  const Error error = thrown_by([&] { open_tensors(folder.path()); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr("has neither model.safetensors nor pytorch_model.bin"));
  EXPECT_THAT(error.what(), EndsWith("; expected a model folder"));
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_THAT(thrown_by([&] { open_tensors(folder.path()); }).what(),
              EndsWith("; expected a model folder; cleave train --model " +
                       (folder / "config.json").string() + " makes new weights"));
  const Error of_bin = thrown_by([&] { TorchBin::open(folder.path()); });
  EXPECT_EQ(of_bin.code(), Code::kIo);
  EXPECT_THAT(of_bin.what(),
              HasSubstr("has neither pytorch_model.bin nor pytorch_model.bin.index.json"));
}

// Oracle: the names of torch's storage classes.
TEST(TorchWriter, EveryDtype_IsWrittenUnderTorchsNameAndReadBack) {
  const TempFolder folder;
  const std::vector<std::pair<DType, std::string>> storages = {
      {DType::kF32, "FloatStorage"},     {DType::kF64, "DoubleStorage"},
      {DType::kBf16, "BFloat16Storage"}, {DType::kF16, "HalfStorage"},
      {DType::kI64, "LongStorage"},      {DType::kI32, "IntStorage"},
      {DType::kI16, "ShortStorage"},     {DType::kI8, "CharStorage"},
      {DType::kU8, "ByteStorage"},       {DType::kBool, "BoolStorage"}};
  for (const auto& [dtype, storage] : storages) {
    SCOPED_TRACE(storage);
    fs::remove_all(folder / "m");
    fs::create_directory(folder / "m");
    const fs::path path = folder / "m/pytorch_model.bin";
    const TorchPlan plan(state_dict_of({{"t", dtype, {2}}}));
    TorchWriter writer(File::create(path), plan);
    const std::string bytes = bytes_from(1, 2 * static_cast<size_t>(item_bytes(dtype)));
    writer.write(0, std::as_bytes(std::span(bytes)));
    writer.finish();
    const TorchBin bin = TorchBin::open(folder / "m");
    EXPECT_EQ(bin.at("t").dtype, dtype);
    EXPECT_EQ(read_bytes(bin, "t").size(), bytes.size());
    EXPECT_EQ(read_bytes(bin, "t").back(), static_cast<int>(bytes.size()));
    std::ifstream file(path, std::ios::binary);
    const std::string all(std::istreambuf_iterator<char>(file), {});
    EXPECT_NE(all.find("ctorch\n" + storage + "\n"), std::string::npos);
  }
}

TEST(TorchWriter, IncompleteStorage_IsRefused) {
  const TempFolder folder;
  const TorchPlan plan(state_dict_of({{"a", DType::kF32, {3}}}));
  TorchWriter writer(File::create(folder / "x.bin"), plan);
  const std::vector<std::byte> bytes(8);
  writer.write(0, bytes);
  EXPECT_THAT(thrown_by([&] { writer.finish(); }).what(), HasSubstr("has 12 bytes; 8 were given"));
  EXPECT_THAT(thrown_by([&] { writer.write(0, bytes); }).what(),
              HasSubstr("has 12 bytes; 16 were given"));
}

TEST(TorchBin, OtherValuesThanAStateDict_AreRefused) {
  const TempFolder folder;
  const auto refusal = [&](const std::string& operations) {
    fs::remove(folder / "x.bin");
    write_bytes(folder / "x.bin",
                test::torch_file(test::pickle(operations), {std::string(16, 'd')}));
    return std::string(thrown_by([&] { TorchBin::open(folder / "x.bin"); }).what());
  };
  EXPECT_THAT(refusal("]"), HasSubstr("holds a list; expected a dict"));
  EXPECT_THAT(refusal(test::dict_of("t", "K\x01")), HasSubstr("'t' is an integer"));
  EXPECT_THAT(refusal("}K\x01Ns"), HasSubstr("has the number 1 as a key"));
  EXPECT_THAT(refusal(test::dict_of("a\n", "N")), HasSubstr("control characters"));
}

}  // namespace
}  // namespace cleave::torch_bin_test
