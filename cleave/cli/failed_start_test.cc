#include "cleave/cli/failed_start.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "cleave/file/fault_hook.h"
#include "cleave/file/file_lock.h"
#include "tests/support/temp_folder.h"

namespace cleave::failed_start_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

/// What a run whose tokens do not fit on the disk leaves.
void write_leftovers(const fs::path& run) {
  fs::create_directories(run / "tokens");
  std::ofstream(run / "tokens/.tokens.lock").close();
}

TEST(FailedStart, OnAFullDisk_IsRemovedWithItsTokens) {
  const TempFolder folder;
  const fs::path run = folder / "runs/first";
  const cli::FailedStart start(run);
  write_leftovers(run);
  const ScopedFileHook full(
      [](FileCall call, const std::string&) { return call == FileCall::kWrite ? ENOSPC : 0; });
  start.clean_up();
  EXPECT_FALSE(fs::exists(folder / "runs"));
}

TEST(FailedStart, WhileAnotherProcessWritesThere_StaysThere) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  const cli::FailedStart start(run);
  write_leftovers(run);
  const FileLock other(run);
  start.clean_up();
  EXPECT_TRUE(fs::exists(run / "tokens/.tokens.lock"));
}

}  // namespace
}  // namespace cleave::failed_start_test
