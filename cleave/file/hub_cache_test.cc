#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/file/file.h"
#include "cleave/file/model_path.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::hub_cache_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

constexpr const char* kVariables[] = {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};

/// Sets or removes variables; the destructor restores them.
class HubCache : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kVariables) {
      const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
      if (value != nullptr) before_[name] = value;
      ::unsetenv(name);  // NOLINT(concurrency-mt-unsafe)
    }
  }
  void TearDown() override {
    for (const char* name : kVariables) {
      ::unsetenv(name);  // NOLINT(concurrency-mt-unsafe)
      if (before_.contains(name)) set(name, before_[name]);
    }
  }
  static void set(const char* name, const fs::path& value) {
    ::setenv(name, value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  }
  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  /// A cache with the model org/name, as huggingface_hub lays it out.
  static fs::path make_model(const fs::path& cache) {
    const fs::path model = cache / "models--org--name";
    write(model / "refs/main", "abc123");
    write(model / "blobs/f00d", "weights");
    fs::create_directories(model / "snapshots/abc123");
    fs::create_symlink("../../blobs/f00d", model / "snapshots/abc123/model.safetensors");
    return model / "snapshots/abc123";
  }

  TempFolder folder_;

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(HubCache, EachVariable_NamesTheCacheBeforeTheNext) {
  const fs::path home = make_model(folder_ / "home/.cache/huggingface/hub");
  set("HOME", folder_ / "home");
  EXPECT_EQ(hub_model("org/name"), home);
  const fs::path xdg = make_model(folder_ / "xdg/huggingface/hub");
  set("XDG_CACHE_HOME", folder_ / "xdg");
  EXPECT_EQ(hub_model("org/name"), xdg);
  const fs::path hf_home = make_model(folder_ / "hf/hub");
  set("HF_HOME", folder_ / "hf");
  EXPECT_EQ(hub_model("org/name"), hf_home);
  const fs::path cache = make_model(folder_ / "cache");
  set("HF_HUB_CACHE", folder_ / "cache");
  EXPECT_EQ(hub_model("org/name"), cache);
}

TEST_F(HubCache, ModelThatIsNotThere_IsRefusedWithTheCommandThatDownloadsIt) {
  set("HF_HUB_CACHE", folder_ / "cache");
  const Error missing = thrown_by([] { (void)hub_model("org/name", "--model"); });
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_EQ(std::string(missing.what()),
            "--model org/name: no such folder, and not in the Hugging Face cache " +
                (folder_ / "cache").string() + "; download it with: hf download org/name");
  fs::remove_all(make_model(folder_ / "cache"));
  EXPECT_THAT(thrown_by([] { (void)hub_model("org/name"); }).what(),
              HasSubstr("is not there; download it again with: hf download org/name"));
  write(folder_ / "cache/models--org--name/refs/main", "../../..");
  EXPECT_EQ(thrown_by([] { (void)hub_model("org/name"); }).code(), Code::kFormat);
}

TEST_F(HubCache, CheckpointThatIsNotThere_IsNotSoughtInTheCache) {
  set("HF_HUB_CACHE", folder_ / "cache");
  const fs::path before = fs::current_path();
  write(folder_ / "mine/latest", "step_00000002");
  fs::current_path(folder_.path());
  EXPECT_EQ(
      std::string(thrown_by([] { (void)hub_model("mine/step_2", "--model"); }).what()),
      "--model mine/step_2: no such folder in the run mine; give mine for its newest checkpoint");
  const fs::path cached = make_model(folder_ / "cache");
  write(folder_ / "org/latest", "step_00000002");
  EXPECT_EQ(hub_model("org/name"), cached);
  fs::current_path(before);
}

// "out/mien" is misspelled; "Qwen/Qwen3-1.7B" is not, beside a folder of another model.
TEST_F(HubCache, NameInAFolderThatIsThere_IsRefusedWithTheNearestFoldersAndTheDownload) {
  set("HF_HUB_CACHE", folder_ / "cache");
  const fs::path before = fs::current_path();
  fs::current_path(folder_ / ".");
  fs::create_directories(folder_ / "out/mine");
  fs::create_directories(folder_ / "out/tuned");
  write(folder_ / "out/mien.html", "a file is no model folder");
  const Error missing = thrown_by([] { (void)hub_model("out/mien", "--model"); });
  fs::current_path(before);
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_EQ(
      std::string(missing.what()),
      "--model out/mien: no such folder, and not in the Hugging Face cache " +
          (folder_ / "cache").string() +
          "; did you mean 'out/mine' or 'out/tuned'; or download it with: hf download out/mien");
}

TEST_F(HubCache, DownloadAdvice_IsForSnapshotsOfACacheOnly) {
  const std::string command = "; download it with: hf download ";
  EXPECT_EQ(download_advice("/hub/models--org--a-b/snapshots/abc"), command + "org/a-b");
  EXPECT_EQ(download_advice("/hub/models--gpt2/snapshots/abc"), command + "gpt2");
  for (const char* other : {"/hub/org/name", "/hub/models--org--name", "/hub/snapshots/abc",
                            "/hub/datasets--org--name/snapshots/abc", "run", ""}) {
    EXPECT_EQ(download_advice(other), "") << other;
  }
}

TEST_F(HubCache, LocalModel_IsTheCachesFolderOrThePath) {
  set("HF_HUB_CACHE", folder_ / "cache");
  EXPECT_EQ(local_model("org/name.gguf"), "org/name.gguf");
  EXPECT_EQ(local_model(folder_.path()), folder_.path());
  EXPECT_THAT(thrown_by([] { (void)local_model("org/name", "--tokenizer"); }).what(),
              HasSubstr("--tokenizer org/name: no such folder"));
  const fs::path snapshot = make_model(folder_ / "cache");
  EXPECT_EQ(local_model("org/name"), snapshot);
}

TEST_F(HubCache, OnlyOrgSlashName_IsAName) {
  EXPECT_TRUE(is_hub_name("Qwen/Qwen3-0.6B"));
  EXPECT_TRUE(is_hub_name("org_1/a.b"));
  for (const char* other : {"gpt2", "a/b/c", "/a", "a/", "../a", "./a", "a b/c", "-a/b", "a/b.json",
                            "a/b.gguf", "a/b.safetensors", "a/b.bin", ""}) {
    EXPECT_FALSE(is_hub_name(other)) << other;
  }
  EXPECT_FALSE(is_hub_name("/proc"));
  const fs::path before = fs::current_path();
  fs::create_directories(folder_ / "org/name");
  fs::current_path(folder_.path());
  EXPECT_FALSE(is_hub_name("org/name"));  // a folder has precedence
  fs::current_path(before);
}

// Parts of a model are opened by the names in an index, which may lead nowhere but to the blobs.
TEST_F(HubCache, LinkToABlob_IsFollowedAndNoOther) {
  const fs::path snapshot = make_model(folder_ / "cache");
  const File file = File::open_read_below(snapshot, "model.safetensors");
  EXPECT_EQ(file.size(), 7U);
  write(folder_ / "secret", "secret");
  int number = 0;
  for (const std::string& target :
       {(folder_ / "secret").string(), std::string("../../../../secret"),
        std::string("../../blobs/../../../secret"), std::string("../../blobs/.."),
        std::string("../../refs/main")}) {
    const std::string name = "link" + std::to_string(number++);
    fs::create_symlink(target, snapshot / name);
    EXPECT_THROW((void)File::open_read_below(snapshot, name), Error) << target;
  }
}

}  // namespace
}  // namespace cleave::hub_cache_test
