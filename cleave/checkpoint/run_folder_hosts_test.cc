// Run folders that the ranks of several hosts do not see in the same way.
#include <atomic>
#include <filesystem>
#include <sched.h>
#include <string>
#include <sys/mount.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/run_folder.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::run_folder_hosts_test {
namespace {

namespace fs = std::filesystem;
using test::on_layout;
using test::TempFolder;
using test::thrown_by;
using test::Training;
using testing::HasSubstr;

// As on two hosts that share no disk. Without this, the first save would fail, after hours. Rank 0
// must not continue either: it would rename checkpoints that rank 1 does not see.
TEST(RunFolder, FolderThatRankZeroDoesNotHave_IsRefusedBeforeTheFirstStep) {
  const TempFolder folder;
  std::atomic<bool> has_continued = false;
  const Error error = thrown_by([&] {
    on_layout({2, 1}, [&](const Writers& writers) {
      const RunFolder run(folder / std::to_string(writers.world.rank()), writers);
      has_continued = true;
    });
  });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr("/1: rank 1 does not see what rank 0 writes there"));
  EXPECT_FALSE(has_continued);
}

/// From now on, this thread sees the folder as one that is mounted for reading only. False if this
/// user may not mount.
bool remount_for_reading(const fs::path& folder) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
         mount(nullptr, folder.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
}

// As on two hosts of which one may only read the disk.
TEST(RunFolder, FolderInWhichOneRankCannotWrite_IsRefusedBeforeTheFirstStep) {
  const TempFolder folder;
  std::atomic<bool> is_mounted = true, has_continued = false;
  const auto open_on_two = [&] {
    on_layout({2, 1}, [&](const Writers& writers) {
      if (writers.world.rank() == 1) is_mounted = remount_for_reading(folder.path());
      writers.world.barrier("mounted");
      CLEAVE_CHECK(is_mounted, Code::kUsage, "this user may not mount");
      const RunFolder run(folder.path(), writers);
      has_continued = true;
    });
  };
  const Error error = thrown_by(open_on_two);
  if (!is_mounted) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr(folder.path().string() + ": access to write failed: Read-"));
  EXPECT_FALSE(has_continued);
}

// As after a restart on a host whose disk is not mounted. The checkpoint is not damaged: without
// this, the run would go back to the older one.
TEST(RunFolder, CheckpointThatOneRankDoesNotSee_IsNotCalledDamaged) {
  const TempFolder folder;
  const Axis one;
  const Training training(one);
  for (const std::string rank : {"0", "1"}) {
    RunFolder run(folder / rank, {one, one, one});
    for (const int64_t step : {1, 2}) run.save(training.checkpoint(step));
  }
  fs::remove_all(folder / "1/step_00000002");
  const Error error = thrown_by([&] {
    on_layout({2, 1}, [&](const Writers& writers) {
      (void)newest_intact_checkpoint(folder / std::to_string(writers.world.rank()), writers.world);
    });
  });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr("/1/step_00000002: rank 1 does not see what rank 0 writes"));
}

}  // namespace
}  // namespace cleave::run_folder_hosts_test
