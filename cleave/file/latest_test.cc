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

// As editors write it.
TEST(ResolveRunFolder, BlanksAndLineEndsAfterTheName_DoNotCount) {
  const TempFolder run;
  std::filesystem::create_directories(run / "step_00000002");
  for (const char* end : {"", "\n", "\r\n", " \n", "\t", "\n\n"}) {
    std::ofstream(run / "latest") << "step_00000002" << end;
    EXPECT_EQ(resolve_run_folder(run.path()), run / "step_00000002");
  }
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

/// The error of a reader that fails with `code` after its checkpoint was removed, or was not.
Error error_of_reader(Code code, bool is_removed) {
  const TempFolder run;
  std::filesystem::create_directories(run / "step_00000002");
  std::ofstream(run / "latest") << "step_00000002\n";
  return thrown_by([&] {
    read_from(folders_of({run.path().string(), "", "no such folder"}), [&] {
      if (is_removed) std::filesystem::remove_all(run / "step_00000002");
      throw Error(code, "no tokenizer");
    });
  });
}

TEST(ReadFrom, CheckpointThatIsRemovedMeanwhile_IsNamedInTheError) {
  for (const Code code : {Code::kIo, Code::kFormat, Code::kUsage}) {
    const Error error = error_of_reader(code, /*is_removed=*/true);
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.what(), HasSubstr("/step_00000002 was removed while it was read, as a run "));
    EXPECT_THAT(error.what(), HasSubstr("give the command again (the error was: no tokenizer)"));
  }
}

TEST(ReadFrom, FolderThatCannotBeOpenedAnyMore_IsNamedInTheError) {
  const TempFolder folder;
  const std::string model = folder / "model";
  std::filesystem::create_directory(model);
  const Error error = thrown_by([&] {
    read_from({model}, [&] {
      std::filesystem::remove(model);
      (void)std::filesystem::directory_iterator(model);
    });
  });
  EXPECT_THAT(error.what(), testing::StartsWith(model + " was removed while it was read"));
}

TEST(ReadFrom, OtherErrors_StayAsTheyAre) {
  EXPECT_STREQ(error_of_reader(Code::kIo, /*is_removed=*/false).what(), "no tokenizer");
  EXPECT_STREQ(error_of_reader(Code::kNumerics, /*is_removed=*/true).what(), "no tokenizer");
}

}  // namespace
}  // namespace cleave::latest_test
