// A damaged checkpoint on disk is never loaded. Its files, index and manifest are made by the code
// that saves.
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/file/folder_writer.h"
#include "cleave/format/block.h"
#include "cleave/format/manifest.h"
#include "cleave/format/safetensors.h"
#include "cleave/runtime/step_recorder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

/// Ten tensors in five files, written by two ranks, each by rows or columns.
std::vector<TensorInfo> tensors_of(const std::string& model) {
  std::vector<TensorInfo> tensors;
  for (int64_t i = 0; i < 10; ++i) {
    tensors.push_back({str(model, ".layers.", i, ".weight"),
                       i % 2 == 0 ? DType::kF32 : DType::kBf16,
                       {40, i % 2 == 0 ? 60 : 120}});
  }
  return tensors;
}

void write_checkpoint(const fs::path& target, unsigned step, const std::string& model = "model") {
  SafetensorsPlanOptions options;
  options.max_file_bytes = 20'000;
  const SafetensorsPlan plan(tensors_of(model), options);
  FolderWriter folder(target);
  plan.create_files(folder);
  std::mt19937 random(step);
  std::vector<WrittenBlock> blocks;
  for (int64_t rank = 0; rank < 2; ++rank) {
    SafetensorsWriter writer(folder.path(), plan);
    for (const TensorInfo& tensor : tensors_of(model)) {
      const int64_t dim = tensor.dtype == DType::kF32 ? 0 : 1;
      const int64_t half = tensor.shape[static_cast<size_t>(dim)] / 2;
      std::vector<std::byte> bytes(4800);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      writer.write_block(tensor.name, {{dim, {{rank * half, (rank + 1) * half}}}}, bytes);
    }
    for (WrittenBlock& block : writer.finish()) blocks.push_back(std::move(block));
  }
  folder.write_file("config.json", str(R"({"model_type":")", model, step, "\"}"));
  folder.write_file("state.json", str("{\"step\":", step, "}"));
  folder.write_file(kManifestName, make_manifest(folder.path(), blocks));
  folder.commit();
}

bool has_tensors(const std::string& name) {
  return name.ends_with(".safetensors");
}

class CheckpointAtRest : public testing::Test {
 protected:
  void SetUp() override {
    write_checkpoint(folder / "step", 1);
    EXPECT_THAT(find_damage(folder / "step"), IsEmpty());
    ASSERT_EQ(names_in(folder / "step").size(), 9U);
  }
  [[nodiscard]] fs::path file(const std::string& name) const { return folder / "step" / name; }
  TempFolder folder;
};

void flip_bit(const fs::path& path, uint64_t byte, unsigned bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  const auto was = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(static_cast<uint8_t>(was) ^ (1U << bit)));
  ASSERT_TRUE(file.flush());
}

/// The tensor with this byte of a file, in quotes; otherwise the file's name.
std::string owner_of(const Safetensors& whole, const std::string& name, uint64_t byte) {
  for (const StoredTensor& tensor : whole.tensors()) {
    if (whole.files()[tensor.file].name != name) continue;
    if (byte >= tensor.begin && byte < tensor.end) return "'" + tensor.name + "'";
  }
  return name;
}

TEST_F(CheckpointAtRest, TwoThousandFlippedBits_AreFoundAndTheTensorNamed) {
  constexpr int kFlips = 2000;
  const Safetensors whole = Safetensors::open(folder / "step");
  std::vector<std::string> names = names_in(folder / "step");
  uint64_t total = 0;
  for (const std::string& name : names) total += fs::file_size(file(name));
  std::mt19937_64 random(5);
  int num_found = 0;
  for (int i = 0; i < kFlips; ++i) {
    uint64_t byte = random() % total;
    size_t at = 0;
    for (; byte >= fs::file_size(file(names[at])); ++at) byte -= fs::file_size(file(names[at]));
    const auto bit = static_cast<unsigned>(random() % 8);
    SCOPED_TRACE(str(names[at], ", byte ", byte, ", bit ", bit));
    flip_bit(file(names[at]), byte, bit);
    const Error error = thrown_by([&] { require_intact(folder / "step"); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), HasSubstr(owner_of(whole, names[at], byte)));
    num_found += error.code() == Code::kFormat ? 1 : 0;
    flip_bit(file(names[at]), byte, bit);
  }
  EXPECT_THAT(find_damage(folder / "step"), IsEmpty());
  std::printf("%d of %d flipped bits found\n", num_found, kFlips);
}

TEST_F(CheckpointAtRest, EveryTruncationOfAHeaderAnd500OfTheData_AreRefusedWithBothSizes) {
  const std::string name = "model-00002-of-00005.safetensors";
  const std::string whole = read_file(file(name));
  const uint64_t data_begin = Safetensors::open(file(name)).files()[0].data_begin;
  std::vector<uint64_t> sizes;
  for (uint64_t size = 0; size < data_begin; ++size) sizes.push_back(size);
  for (uint64_t i = 0; i < 500; ++i) {
    sizes.push_back(data_begin + (whole.size() - data_begin) * i / 500);
  }
  for (const uint64_t size : sizes) {
    SCOPED_TRACE(size);
    fs::remove(file(name));
    std::ofstream(file(name), std::ios::binary) << whole.substr(0, size);
    const double start = thread_cpu_s();
    const Error error = thrown_by([&] { Safetensors::open(folder / "step"); });
    EXPECT_LT(thread_cpu_s() - start, 0.05);
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), HasSubstr("is truncated"));
    EXPECT_THAT(find_damage(folder / "step"),
                testing::ElementsAre(str(name, " has ", size, " bytes; expected ", whole.size())));
  }
  std::printf("%zu truncations\n", sizes.size());
}

/// A kind of damage to a checkpoint.
struct Damage {
  std::string name;
  std::function<void(const fs::path& checkpoint)> apply;
};

/// Damages of one file; `later` and `other` are checkpoints of a later step and of another model.
std::vector<Damage> damages_of(const std::string& name, const fs::path& later,
                               const fs::path& other) {
  const auto replace = [name](const fs::path& from) {
    return [=](const fs::path& in) {
      fs::copy_file(from, in / name, fs::copy_options::overwrite_existing);
    };
  };
  std::vector<Damage> damages{
      {"missing", [=](const fs::path& in) { fs::remove(in / name); }},
      {"empty", [=](const fs::path& in) { fs::resize_file(in / name, 0); }},
      {"one byte longer",
       [=](const fs::path& in) { fs::resize_file(in / name, fs::file_size(in / name) + 1); }},
      {"a folder",
       [=](const fs::path& in) {
         fs::remove(in / name);
         fs::create_directory(in / name);
       }},
      {"a link to another file", [=](const fs::path& in) {
         fs::remove(in / name);
         fs::create_symlink(later / name, in / name);
       }}};
  // A later step's manifest matches none of the files; its index is identical to this step's.
  if (!name.ends_with(".index.json")) damages.push_back({"of a later step", replace(later / name)});
  if (!has_tensors(name)) return damages;
  damages.push_back({"of another model", replace(other / name)});
  damages.push_back({"doubled under another number", [=](const fs::path& in) {
                       fs::copy_file(in / name, in / "model-00006-of-00005.safetensors");
                     }});
  damages.push_back({"under another number", [=](const fs::path& in) {
                       fs::rename(in / name, in / "model-00006-of-00006.safetensors");
                     }});
  damages.push_back({"swapped with the first", [=](const fs::path& in) {
                       const std::string first = name == "model-00001-of-00005.safetensors"
                                                     ? "model-00005-of-00005.safetensors"
                                                     : "model-00001-of-00005.safetensors";
                       fs::rename(in / name, in / "kept");
                       fs::rename(in / first, in / name);
                       fs::rename(in / "kept", in / first);
                     }});
  return damages;
}

TEST_F(CheckpointAtRest, FilesMissingDoubledSwappedRenamedOrMixed_AreRefused) {
  write_checkpoint(folder / "later", 2);
  write_checkpoint(folder / "other", 1, "other");
  int num_cases = 0;
  for (const std::string& name : names_in(folder / "step")) {
    for (const Damage& damage : damages_of(name, folder / "later", folder / "other")) {
      SCOPED_TRACE(name + " " + damage.name);
      const fs::path copy = folder / "copy";
      fs::copy(folder / "step", copy, fs::copy_options::recursive);
      damage.apply(copy);
      const Error error = thrown_by([&] { require_intact(copy); });
      EXPECT_TRUE(error.code() == Code::kFormat || error.code() == Code::kIo);
      EXPECT_THAT(error.what(), HasSubstr("copy"));
      fs::remove_all(copy);
      ++num_cases;
    }
  }
  EXPECT_GE(num_cases, 60);
  std::printf("%d damaged checkpoints\n", num_cases);
}

}  // namespace
}  // namespace cleave::test
