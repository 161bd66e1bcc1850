// The disk space that a conversion requires. Oracle: the space of its files, and disks of about
// that size.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/convert.h"
#include "cleave/format/manifest.h"
#include "tests/support/saved_models.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::disk_space_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

struct Form {
  ModelFormat format;
  int tp = 1, pp = 1;
};

class ConversionDisk : public testing::TestWithParam<Form> {};

TEST_P(ConversionDisk, LargeEnough_IsUsedAndASmallerOneIsRefusedBeforeAnythingIsWritten) {
  const TempFolder folder;
  test::write_model_folder(folder / "model", test::kLlamaConfig,
                           test::tensors_of(test::kLlamaConfig));
  ConvertOptions options{.from = folder / "model",
                         .to = folder / "plain",
                         .format = GetParam().format,
                         .tp = GetParam().tp,
                         .pp = GetParam().pp,
                         .max_file_bytes = 20'000};
  convert(options);
  const uint64_t taken = test::bytes_on_disk(options.to);
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  options.to = disk / "model";
  constexpr uint64_t kSpare = 64 << 10;  // a block for each of a dozen files and folders
  const bool may_mount = test::on_small_disk(disk, taken + kSpare, [&] {
    convert(options);
    EXPECT_EQ(find_damage(options.to), std::vector<std::string>());
  });
  if (!may_mount) GTEST_SKIP() << "needs the right to mount a file system";
  test::on_small_disk(disk, taken - 4096, [&] {
    const Error error = test::thrown_by([&] { convert(options); });
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.what(), testing::HasSubstr(" bytes are needed, the disk has "));
    EXPECT_FALSE(fs::exists(options.to));
  });
}

const char* name_of(const testing::TestParamInfo<Form>& form) {
  constexpr const char* kNames[] = {"Safetensors", "Bin", "Oslo", "Nxd"};
  return kNames[static_cast<size_t>(form.param.format)];
}

INSTANTIATE_TEST_SUITE_P(Forms, ConversionDisk,
                         testing::Values(Form{ModelFormat::kSafetensors}, Form{ModelFormat::kBin},
                                         Form{ModelFormat::kOslo, 3, 2},
                                         Form{ModelFormat::kNxd, 4, 3}),
                         name_of);

}  // namespace
}  // namespace cleave::disk_space_test
