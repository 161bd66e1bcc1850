// A complete save (tensors in place, manifest, folder, latest) that fails or is killed at every
// system call. Afterwards `latest` must name the old or the new checkpoint, and it must be intact.
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <set>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/file/atomic_write.h"
#include "cleave/file/fault_hook.h"
#include "cleave/file/folder_writer.h"
#include "cleave/format/manifest.h"
#include "cleave/format/safetensors.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::save_fault_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kRows = 3000;
constexpr int64_t kColumns = 80;

void save(const fs::path& run, int64_t step) {
  SafetensorsPlanOptions options;
  options.max_file_bytes = kRows * kColumns;
  const SafetensorsPlan plan({{"a", DType::kU8, {kRows, kColumns}}, {"b", DType::kF32, {5}}},
                             options);
  remove_leftovers(run);
  FolderWriter folder(run / str("step_", step));
  plan.create_files(folder);
  std::vector<WrittenBlock> blocks;
  for (int64_t rank = 0; rank < 2; ++rank) {
    SafetensorsWriter writer(folder.path(), plan);
    const std::vector<std::byte> half(kRows * kColumns / 2, static_cast<std::byte>(step));
    writer.write_block("a", {{0, {{rank * kRows / 2, (rank + 1) * kRows / 2}}}}, half);
    if (rank == 0) writer.write_block("b", {}, std::span(half).first(20));
    for (WrittenBlock& block : writer.finish()) blocks.push_back(std::move(block));
  }
  folder.write_file("state.json", str("{\"step\":", step, "}"));
  folder.write_file(kManifestName, make_manifest(folder.path(), blocks));
  folder.commit();
  write_atomic(run / "latest", str("step_", step, "\n"));
}

void expect_whole(const fs::path& run, int64_t old_step, int64_t new_step) {
  std::string latest = read_file(run / "latest");
  latest.pop_back();
  EXPECT_THAT(latest, AnyOf(str("step_", old_step), str("step_", new_step)));
  EXPECT_THAT(find_damage(run / latest), IsEmpty());
  const Safetensors set = Safetensors::open(run / latest);
  std::vector<std::byte> bytes(kRows * kColumns);
  set.read_block(set.at("a"), {}, bytes);
  const auto value = static_cast<std::byte>(latest == str("step_", new_step) ? new_step : old_step);
  EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size(), value));
  // The next start removes what a dead writer left.
  remove_leftovers(run);
  for (const auto& entry : fs::directory_iterator(run)) {
    if (entry.is_directory()) {
      EXPECT_THAT(find_damage(entry.path()), IsEmpty());
    }
    EXPECT_NE(entry.path().extension(), kPartialSuffix);
  }
}

/// Number of hooked calls of a save.
int count_calls(const fs::path& run) {
  int calls = 0;
  const ScopedFileHook hook([&](FileCall, const std::string&) { return ++calls, 0; });
  save(run, 1);
  return calls;
}

class SaveError : public testing::TestWithParam<int> {};

TEST_P(SaveError, ErrorAtEverySystemCall_LeavesTheOldOrTheNewCheckpoint) {
  const TempFolder folder;
  const int num_calls = count_calls(folder.path());
  EXPECT_GE(num_calls, 35);
  int64_t step = 1;
  for (int failing = 1; failing <= num_calls; ++failing) {
    const int64_t last_good = step;
    int calls = 0;
    std::string message;
    {
      const ScopedFileHook hook(
          [&](FileCall, const std::string&) { return ++calls == failing ? GetParam() : 0; });
      try {
        save(folder.path(), ++step);
      } catch (const Error& error) {
        message = error.what();
        EXPECT_EQ(error.code(), Code::kIo);
      }
    }
    EXPECT_THAT(message, HasSubstr(std::generic_category().message(GetParam())))
        << "call " << failing;
    SCOPED_TRACE(failing);
    expect_whole(folder.path(), last_good, step);
    save(folder.path(), ++step);
  }
}

INSTANTIATE_TEST_SUITE_P(DiskFullQuotaBrokenOrReadOnly, SaveError,
                         testing::Values(ENOSPC, EDQUOT, EIO, EROFS));

TEST(Save, KilledAtEverySystemCall_LeavesTheOldOrTheNewCheckpoint) {
  const TempFolder folder;
  const int num_calls = count_calls(folder.path());
  int64_t step = 1;
  for (int deadly = 1; deadly <= num_calls; ++deadly) {
    const int64_t last_good = step;
    ++step;
    const pid_t child = ::fork();
    if (child == 0) {
      int calls = 0;
      const ScopedFileHook hook(
          [&](FileCall, const std::string&) { return ++calls == deadly ? ::raise(SIGKILL) : 0; });
      save(folder.path(), step);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "call " << deadly << " was never made";
    SCOPED_TRACE(deadly);
    expect_whole(folder.path(), last_good, step);
    save(folder.path(), ++step);
  }
}

// A power failure loses writes without a later fsync of their file, and names without a later fsync
// of their folder.
TEST(Save, EveryRename_ComesAfterTheFsyncOfAllItPublishesAndBeforeThatOfItsFolder) {
  const TempFolder folder;
  std::set<std::string> unsynced, unsynced_folders;
  int renames = 0;
  {
    const ScopedFileHook hook([&](FileCall call, const std::string& path) {
      const std::string parent = fs::path(path).parent_path();
      if (call == FileCall::kOpen) unsynced_folders.insert(parent);
      if (call == FileCall::kWrite || call == FileCall::kAllocate) unsynced.insert(path);
      if (call == FileCall::kFsync) unsynced.erase(path);
      if (call == FileCall::kFsyncFolder) unsynced_folders.erase(path);
      if (call == FileCall::kRename) {
        ++renames;
        EXPECT_THAT(unsynced, IsEmpty()) << path;
        EXPECT_FALSE(unsynced_folders.contains(path + ".partial")) << path;
        unsynced_folders.insert(parent);
      }
      return 0;
    });
    save(folder.path(), 1);
  }
  EXPECT_EQ(renames, 2);  // the checkpoint's folder, then `latest`
  EXPECT_THAT(unsynced_folders, IsEmpty());
}

TEST(Save, FileSizeLimit_IsAnIoErrorAndTheOldCheckpointStays) {
  const TempFolder folder;
  save(folder.path(), 1);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{100000, 100000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int result = 1;
    try {
      save(folder.path(), 2);
    } catch (const Error& error) {
      result = error.code() == Code::kIo ? 0 : 2;
    }
    ::_exit(result);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(read_file(folder / "latest"), "step_1\n");
  expect_whole(folder.path(), 1, 1);
}

/// Saves until it fails, on a file system of 2 MiB in a private mount namespace; then again after a
/// read-only remount. Returns 0 if both saves fail correctly, 77 if mounting is not permitted.
int save_on_a_small_disk(const fs::path& run) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", run.c_str(), "tmpfs", 0, "size=2m") != 0) {
    return 77;
  }
  int64_t step = 0;
  for (const unsigned long flags : {0UL, static_cast<unsigned long>(MS_REMOUNT | MS_RDONLY)}) {
    if (flags != 0 && ::mount("tmpfs", run.c_str(), "tmpfs", flags, "size=2m") != 0) return 77;
    try {
      for (; step < 100; ++step) save(run, step);
      return 1;  // a hundred checkpoints cannot fit
    } catch (const Error& error) {
      if (error.code() != Code::kIo) return 2;
    }
    if (read_file(run / "latest") != str("step_", step - 1, "\n")) return 3;
    if (!find_damage(run / str("step_", step - 1)).empty()) return 4;
  }
  return 0;
}

TEST(Save, FullAndReadOnlyFileSystems_AreIoErrorsAndTheOldCheckpointStays) {
  const TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(save_on_a_small_disk(folder.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs the right to mount a file system";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(FolderWriter, ExistingTarget_IsNeverOverwritten) {
  const TempFolder folder;
  save(folder.path(), 1);
  const Error error = test::thrown_by([&] { save(folder.path(), 1); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr("already exists"));
  expect_whole(folder.path(), 1, 1);
}

TEST(RemoveFolder, FailureAtEveryCall_LeavesAWholeFolderOrALeftover) {
  const TempFolder folder;
  for (int failing = 1; failing <= 4; ++failing) {
    save(folder.path(), failing);
    const fs::path target = folder / str("step_", failing);
    int calls = 0;
    {
      const ScopedFileHook hook(
          [&](FileCall, const std::string&) { return ++calls == failing ? EIO : 0; });
      EXPECT_EQ(test::thrown_by([&] { remove_folder(target); }).code(), Code::kIo);
    }
    if (fs::exists(target)) {
      EXPECT_THAT(find_damage(target), IsEmpty());
    }
    remove_leftovers(folder.path());
    if (fs::exists(target)) remove_folder(target);
    EXPECT_FALSE(fs::exists(target));
  }
}

TEST(SaveFault, PartialFilesOfTheUserInARunsFolder_Stay) {
  const TempFolder folder;
  for (const char* name : {"data.partial", "step_00000002.partial"}) {
    fs::create_directory(folder / name);
    std::ofstream(folder / name / "file") << "text";
  }
  std::ofstream(folder / "download.partial") << "text";
  std::ofstream(folder / "latest.partial") << "step_";
  EXPECT_EQ(remove_leftovers(folder.path()), 2);
  EXPECT_EQ(read_file(folder / "data.partial/file"), "text");
  EXPECT_EQ(read_file(folder / "download.partial"), "text");
  EXPECT_FALSE(fs::exists(folder / "step_00000002.partial"));
  EXPECT_FALSE(fs::exists(folder / "latest.partial"));
}

}  // namespace
}  // namespace cleave::save_fault_test
