#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/file/model_path.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::latest_test {
namespace {

using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

TEST(ResolveRunFolder, RunFolder_IsTheFolderThatLatestNames) {
  const TempFolder run;
  std::filesystem::create_directories(run / "step_00000002");
  std::ofstream(run / "latest") << "step_00000002\n";
  EXPECT_EQ(resolve_run_folder(run.path()), run / "step_00000002");
  std::ofstream(run / "config.json") << "{}";  // a run has links to its checkpoint's files
  EXPECT_EQ(resolve_run_folder(run.path()), run / "step_00000002");
}

TEST(ResolveRunFolder, OtherFolders_AreReturnedUnchanged) {
  const TempFolder folder;
  EXPECT_EQ(resolve_run_folder(folder.path()), folder.path());
  EXPECT_EQ(resolve_run_folder(folder / "missing"), folder / "missing");
  std::filesystem::create_directories(folder / "global_step500");  // as DeepSpeed writes them
  std::ofstream(folder / "latest") << "global_step500";
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_EQ(resolve_run_folder(folder.path()), folder.path());
}

TEST(ResolveRunFolder, LatestThatNamesNoFolderInTheRun_IsRefused) {
  const TempFolder run;
  for (const char* name : {"../other", "", "a/b", "a\nb"}) {
    std::ofstream(run / "latest") << name;
    EXPECT_EQ(thrown_by([&] { resolve_run_folder(run.path()); }).code(), Code::kFormat) << name;
  }
  std::ofstream(run / "latest") << "step_00000009";
  const Error missing = thrown_by([&] { resolve_run_folder(run.path()); });
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_THAT(missing.what(), HasSubstr("latest names step_00000009, which is not there"));
}

}  // namespace
}  // namespace cleave::latest_test
