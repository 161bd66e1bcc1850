#include "cleave/format/manifest.h"

#include <cstring>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/hash.h"
#include "cleave/format/safetensors.h"
#include "cleave/text/json.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::manifest_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::thrown_by;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<TensorInfo> kTensors = {{"embed", DType::kF32, {12, 5}},
                                          {"proj", DType::kBf16, {6, 8}},
                                          {"norm", DType::kF32, {5}},
                                          {"none", DType::kF32, {0}}};

/// A checkpoint in several files, written by two ranks: embed sharded by rows, proj by columns.
void write_checkpoint(const fs::path& target, char value) {
  SafetensorsPlanOptions options;
  options.max_file_bytes = 250;
  const SafetensorsPlan plan(kTensors, options);
  FolderWriter folder(target);
  plan.create_files(folder);
  std::vector<WrittenBlock> blocks;
  for (int64_t rank = 0; rank < 2; ++rank) {
    SafetensorsWriter writer(folder.path(), plan);
    const std::vector<std::byte> bytes(400, static_cast<std::byte>(value + rank));
    const auto half = [&](int64_t n) {
      return std::vector<Range>{{rank * n / 2, (rank + 1) * n / 2}};
    };
    writer.write_block("embed", {{0, half(12)}}, std::span(bytes).first(120));
    writer.write_block("proj", {{1, half(8)}}, std::span(bytes).first(48));
    if (rank == 0) writer.write_block("norm", {}, std::span(bytes).first(20));
    for (WrittenBlock& block : writer.finish()) blocks.push_back(std::move(block));
  }
  folder.write_file("config.json", "{\"model_type\":\"x\"}");
  folder.write_file(kManifestName, make_manifest(folder.path(), blocks));
  folder.commit();
}

class ManifestTest : public testing::Test {
 protected:
  void SetUp() override { write_checkpoint(folder / "m", 'a'); }
  std::vector<std::string> damage() { return find_damage(folder / "m"); }
  TempFolder folder;
  const std::string first = "model-00001-of-00002.safetensors";
  const std::string second = "model-00002-of-00002.safetensors";
};

TEST_F(ManifestTest, FolderAsWritten_IsIntact) {
  EXPECT_THAT(damage(), IsEmpty());
  EXPECT_NO_THROW(require_intact(folder / "m"));
  std::ofstream(folder / "m/README.md") << "a note";
  EXPECT_THAT(damage(), IsEmpty());
}

// As a run with --keep-last does with an old checkpoint.
TEST_F(ManifestTest, FolderThatIsRemovedMeanwhile_IsNotCalledDamaged) {
  const fs::path m = folder / "m";
  const Error removed = thrown_by(
      [&] { require_intact(m, {.on_bytes = [&](uint64_t, uint64_t) { fs::remove_all(m); }}); });
  EXPECT_EQ(removed.code(), Code::kIo);
  EXPECT_THAT(removed.what(), testing::StartsWith(m.string() + " was removed while it was read"));
  const Error missing = thrown_by([&] { require_intact(m); });
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_THAT(missing.what(), testing::Not(HasSubstr("was removed")));
}

TEST_F(ManifestTest, EveryFlippedBitOfEveryFile_IsFoundAndTheTensorNamed) {
  for (const auto& entry : fs::directory_iterator(folder / "m")) {
    const std::string name = entry.path().filename();
    std::string bytes = read_file(entry.path());
    const bool has_tensors = entry.path().extension() == ".safetensors";
    const Safetensors set =
        has_tensors ? Safetensors::open(entry.path()) : Safetensors::open(folder / "m");
    std::mt19937 random(7);
    for (size_t at = 0; at < bytes.size(); ++at) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << random() % 8));
      std::ofstream(entry.path(), std::ios::binary) << flipped;
      std::string wanted = name;
      for (const StoredTensor& tensor : set.tensors()) {
        if (has_tensors && at >= tensor.begin && at < tensor.end) wanted = "'" + tensor.name + "'";
      }
      EXPECT_THAT(thrown_by([&] { require_intact(folder / "m"); }).what(), HasSubstr(wanted)) << at;
    }
    std::ofstream(entry.path(), std::ios::binary) << bytes;
  }
  EXPECT_THAT(damage(), IsEmpty());
}

TEST_F(ManifestTest, ChangedRange_IsNamedByDimAndIndices) {
  std::string bytes = read_file(folder / "m" / first);
  bytes.back() = 'x';  // the last byte of proj[5][7]: the second rank's columns
  std::ofstream(folder / "m" / first, std::ios::binary) << bytes;
  ASSERT_EQ(Safetensors::open(folder / "m" / first).tensors().back().name, "embed");
  EXPECT_THAT(damage(),
              ElementsAre(first + ": tensor 'embed': the bytes of dim 0 [6, 12) have changed"));
}

TEST_F(ManifestTest, TruncationAtEveryLength_IsFoundWithBothSizes) {
  const auto size = fs::file_size(folder / "m" / first);
  const std::string bytes = read_file(folder / "m" / first);
  for (uint64_t kept = 0; kept < size; kept += 3) {
    fs::resize_file(folder / "m" / first, kept);
    EXPECT_THAT(damage(), ElementsAre(str(first, " has ", kept, " bytes; expected ", size)));
    std::ofstream(folder / "m" / first, std::ios::binary) << bytes;
  }
}

TEST_F(ManifestTest, MissingExtraAndSwappedFiles_AreNamed) {
  fs::copy_file(folder / "m" / first, folder / "m/extra.safetensors");
  EXPECT_THAT(damage(), ElementsAre("extra.safetensors is not in the manifest"));
  fs::remove(folder / "m/extra.safetensors");

  fs::rename(folder / "m" / first, folder / "kept");
  EXPECT_THAT(damage(), ElementsAre(first + " is missing"));
  fs::rename(folder / "m" / second, folder / "m" / first);
  fs::rename(folder / "kept", folder / "m" / second);
  EXPECT_THAT(damage(), Contains(HasSubstr(first)));
  EXPECT_THAT(damage(), Contains(HasSubstr(second)));
}

TEST_F(ManifestTest, FileOfAnotherStep_IsNamedWithItsTensors) {
  write_checkpoint(folder / "later", 'p');
  fs::copy_file(folder / "later" / second, folder / "m" / second,
                fs::copy_options::overwrite_existing);
  for (const std::string& problem : damage()) EXPECT_THAT(problem, HasSubstr(second));
  EXPECT_EQ(damage().size(), 3u);  // both column blocks of proj, and norm
}

TEST_F(ManifestTest, MissingManifest_IsAnIoError) {
  fs::remove(folder / "m" / kManifestName);
  EXPECT_EQ(thrown_by([&] { damage(); }).code(), Code::kIo);
}

TEST_F(ManifestTest, LinkInPlaceOfAFile_IsRefused) {
  fs::rename(folder / "m/config.json", folder / "config.json");
  fs::create_symlink(folder / "config.json", folder / "m/config.json");
  EXPECT_THAT(thrown_by([&] { damage(); }).what(), HasSubstr("symbolic link"));
}

TEST_F(ManifestTest, SharesOfSeveralRanks_FindEachDamageOnce) {
  for (const std::string& name : {first, second}) {
    std::string bytes = read_file(folder / "m" / name);
    const Safetensors set = Safetensors::open(folder / "m" / name);
    for (const StoredTensor& tensor : set.tensors()) {
      if (tensor.begin != tensor.end) bytes[tensor.begin] ^= 1;
    }
    std::ofstream(folder / "m" / name, std::ios::binary) << bytes;
  }
  const auto all = damage();
  ASSERT_EQ(all.size(), 3u);
  for (int count = 1; count <= 5; ++count) {
    std::vector<std::string> joined;
    for (int index = 0; index < count; ++index) {
      for (auto& problem : find_damage(folder / "m", {index, count})) joined.push_back(problem);
    }
    EXPECT_THAT(joined, testing::UnorderedElementsAreArray(all)) << count;
  }
}

TEST(Manifest, SharesOfTwoRanks_AreHalvesOfTheBytes) {
  const TempFolder folder;
  const std::vector<std::byte> bytes(size_t{1} << 16);
  const SafetensorsPlan plan({{"a", DType::kU8, {1 << 16}}, {"b", DType::kU8, {1 << 16}}});
  FolderWriter writer(folder / "m");
  plan.create_files(writer);
  SafetensorsWriter tensors(writer.path(), plan);
  for (const char* name : {"a", "b"}) tensors.write_block(name, {}, bytes);
  writer.write_file(kManifestName, make_manifest(writer.path(), tensors.finish()));
  writer.commit();
  const fs::path path = folder / "m/model.safetensors";
  std::string changed = read_file(path);
  for (const size_t from_end : {size_t{1}, (size_t{1} << 16) + 1}) {
    changed[changed.size() - from_end] = 'x';
  }
  std::ofstream(path, std::ios::binary) << changed;
  for (const int index : {0, 1}) {
    EXPECT_THAT(find_damage(folder / "m", {index, 2}),
                ElementsAre(HasSubstr(index == 0 ? "tensor 'a'" : "tensor 'b'")));
  }
}

// Oracle: the sizes of the files. The folder of a rank is hashed as a whole.
TEST_F(ManifestTest, Progress_EndsWithTheBytesOfAllFiles) {
  FolderWriter ranks(folder / "ranks");
  ranks.make_folder("rank_00");
  ranks.write_file("rank_00/checkpoint.pt", std::string(1'000'000, 'x'));
  ranks.write_file(kManifestName, make_manifest(ranks.path(), {}));
  ranks.commit();
  for (const char* name : {"m", "ranks"}) {
    uint64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder / name)) {
      const bool counts = entry.is_regular_file() && entry.path().filename() != kManifestName;
      if (counts) bytes += entry.file_size();
    }
    std::vector<uint64_t> seen;
    const VerifyShare share{.on_bytes = [&](uint64_t done, uint64_t total) {
      seen.push_back(done);
      EXPECT_EQ(total, bytes) << name;
    }};
    EXPECT_THAT(find_damage(folder / name, share), IsEmpty());
    EXPECT_GT(seen.size(), 3U);
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(seen.back(), bytes) << name;
  }
}

/// Replaces `from` in the manifest of `folder` and corrects its checksum.
void edit_manifest(const fs::path& folder, const std::string& from, const std::string& to) {
  std::string text = read_file(folder / kManifestName);
  const std::string between = "\"manifest\":";
  const size_t begin = text.find(between) + between.size();
  std::string body = text.substr(begin, text.rfind('}') - begin);
  ASSERT_NE(body.find(from), std::string::npos) << body;
  body.replace(body.find(from), from.size(), to);
  text = str("{\"xxh3\":\"", to_hex(hash_bytes(body)), "\",", between, body, "}\n");
  std::ofstream(folder / kManifestName, std::ios::binary) << text;
}

TEST_F(ManifestTest, InvalidEntries_AreNamed) {
  const auto problem = [&](const std::string& from, const std::string& to) {
    const std::string kept = read_file(folder / "m" / kManifestName);
    edit_manifest(folder / "m", from, to);
    const Error error = thrown_by([&] { require_intact(folder / "m"); });
    std::ofstream(folder / "m" / kManifestName, std::ios::binary) << kept;
    EXPECT_EQ(error.code(), Code::kFormat);
    return std::string(error.what());
  };
  EXPECT_THAT(problem("\"version\":1", "\"version\":2"), HasSubstr("cleave reads version 1"));
  EXPECT_THAT(problem("cleave-manifest", "other-manifest"), HasSubstr("unknown format"));
  EXPECT_THAT(problem("[0,6]", "[0,6,7]"), HasSubstr("expected [begin, end]"));
  EXPECT_THAT(problem("[6,12]", "[6,13]"), HasSubstr("tensor 'embed': range [6, 13)"));
  EXPECT_THAT(problem("\"embed\"", "\"other\""), HasSubstr("'embed' is not in the manifest"));
  EXPECT_THAT(problem("\"config.json\"", "\"../m/config.json\""), HasSubstr("not a path or link"));
  EXPECT_THAT(problem("\"file\":\"" + first, "\"file\":\"gone.safetensors"),
              HasSubstr("\"gone.safetensors\"; expected one of the files with tensors"));
  EXPECT_THAT(damage(), IsEmpty());
}

TEST(Manifest, FilesInSubfolders_AreVerifiedToo) {
  const TempFolder folder;
  FolderWriter writer(folder / "m");
  writer.make_folder("rank_00");
  writer.write_file("rank_00/checkpoint.pt", "bytes of a rank");
  writer.write_file("config.json", "{}");
  writer.write_file(kManifestName, make_manifest(writer.path(), {}));
  writer.commit();
  EXPECT_THAT(find_damage(folder / "m"), IsEmpty());
  std::ofstream(folder / "m/rank_00/checkpoint.pt") << "bytes of a rack";
  EXPECT_THAT(find_damage(folder / "m"), ElementsAre("rank_00/checkpoint.pt has changed"));
  std::ofstream(folder / "m/rank_00/checkpoint.pt") << "bytes of a rank";
  std::ofstream(folder / "m/rank_00/other.pt") << "x";
  EXPECT_THAT(find_damage(folder / "m"), ElementsAre("rank_00/other.pt is not in the manifest"));
  fs::remove(folder / "m/rank_00/other.pt");

  fs::rename(folder / "m/rank_00", folder / "elsewhere");
  EXPECT_THAT(find_damage(folder / "m"), ElementsAre("rank_00/checkpoint.pt is missing"));
  fs::create_symlink(folder / "elsewhere", folder / "m/rank_00");
  EXPECT_THAT(thrown_by([&] { find_damage(folder / "m"); }).what(),
              HasSubstr("not a path or link"));
}

TEST(FolderWriter, NamesThatArePaths_AreRefused) {
  const TempFolder folder;
  FolderWriter writer(folder / "m");
  writer.make_folder("inside");
  for (const char* name : {"..", "a/b", ""}) {
    EXPECT_EQ(thrown_by([&] { writer.make_folder(name); }).code(), Code::kUsage) << name;
  }
  for (const char* name : {"other/x", "inside/../x", "inside/", "../x"}) {
    EXPECT_EQ(thrown_by([&] { writer.write_file(name, "x"); }).code(), Code::kUsage) << name;
  }
  EXPECT_EQ(thrown_by([&] { writer.make_folder("inside"); }).code(), Code::kIo);
  writer.write_file("inside/x", "x");
  writer.abandon();
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Manifest, MoreValuesThanOtherFilesMayHave_CanBeReadBack) {
  const TempFolder folder;
  WrittenBlock block{.file = "model.safetensors", .tensor = "t", .slices = {{0, {}}}};
  for (int64_t row = 0; row < 1'500'000; ++row) block.slices[0].ranges.push_back({row, row + 1});
  ASSERT_GT(3 * block.slices[0].ranges.size(), JsonLimits{}.max_values);
  FolderWriter writer(folder / "m");
  SafetensorsPlan({{"none", DType::kU8, {0}}}).create_files(writer);
  writer.write_file(kManifestName, make_manifest(writer.path(), {std::move(block)}));
  writer.commit();
  EXPECT_THAT(find_damage(folder / "m"), IsEmpty());
}

TEST(Manifest, TooLargeToBeReadBack_IsNotWritten) {
  const TempFolder folder;
  std::vector<WrittenBlock> blocks;
  for (int i = 0; i < 140; ++i) {
    blocks.push_back(
        {.file = "f", .tensor = str(i, std::string(size_t{1} << 20, 'n')), .slices = {}});
  }
  const Error error = thrown_by([&] { (void)make_manifest(folder.path(), blocks); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr(": a manifest of 140 blocks has 146"));
  blocks.resize(100);
  EXPECT_NO_THROW((void)make_manifest(folder.path(), blocks));
}

TEST(Manifest, RangesWithAHoleOrOverlap_AreFound) {
  const TempFolder folder;
  const SafetensorsPlan plan({{"t", DType::kU8, {8}}});
  for (const Range second : {Range{5, 8}, Range{3, 8}}) {
    const fs::path target = folder / str("from", second.begin);
    FolderWriter writer(target);
    plan.create_files(writer);
    SafetensorsWriter tensors(writer.path(), plan);
    const std::vector<std::byte> bytes(8, std::byte{1});
    tensors.write_block("t", {{0, {{0, 4}}}}, std::span(bytes).first(4));
    tensors.write_block("t", {{0, {second}}},
                        std::span(bytes).first(static_cast<size_t>(second.size())));
    writer.write_file(kManifestName, make_manifest(writer.path(), tensors.finish()));
    writer.commit();
    EXPECT_THAT(find_damage(target), Contains(HasSubstr("no written range covers byte 4")));
  }
}

}  // namespace
}  // namespace cleave::manifest_test
