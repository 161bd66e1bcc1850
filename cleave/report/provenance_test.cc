#include <fstream>

#include <gtest/gtest.h>

#include "cleave/report/record.h"
#include "tests/support/temp_folder.h"

namespace cleave::provenance_test {
namespace {

using test::TempFolder;

const std::string kHash(40, 'a');

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(UtcText, KnownTime_IsItsDate) {
  EXPECT_EQ(utc_text(0), "1970-01-01 00:00:00 UTC");
  EXPECT_EQ(utc_text(951782400), "2000-02-29 00:00:00 UTC");
}

TEST(GitCommit, BranchOfAFolderAbove_IsItsHash) {
  const TempFolder folder;
  write(folder / "r/.git/HEAD", "ref: refs/heads/main\n");
  std::filesystem::create_directories(folder / "r/a/b");
  EXPECT_EQ(git_commit(folder / "r/a/b"), "") << "no commit yet";
  write(folder / "r/.git/packed-refs",
        "# pack-refs\n" + std::string(40, 'b') + " refs/heads/main\n" + kHash + " refs/heads/x\n");
  EXPECT_EQ(git_commit(folder / "r/a/b"), std::string(40, 'b'));
  write(folder / "r/.git/refs/heads/main", kHash + "\n");
  EXPECT_EQ(git_commit(folder / "r/a/b"), kHash);
}

TEST(GitCommit, DetachedHeadAndWorktree_AreFollowed) {
  const TempFolder folder;
  write(folder / "r/.git/HEAD", kHash + "\n");
  EXPECT_EQ(git_commit(folder / "r"), kHash);
  write(folder / "r/.git/refs/heads/side", std::string(40, 'c') + "\n");
  write(folder / "r/.git/worktrees/w/HEAD", "ref: refs/heads/side\n");
  write(folder / "r/.git/worktrees/w/commondir", "../..\n");
  write(folder / "w/.git", "gitdir: " + (folder / "r/.git/worktrees/w").string() + "\n");
  EXPECT_EQ(git_commit(folder / "w"), std::string(40, 'c'));
}

TEST(GitCommit, FilesThatAreNotGits_GiveNone) {
  const TempFolder folder;
  for (const char* head : {"", "<script>", "ref: ", "ref: refs/heads/none\n", "abc\n"}) {
    write(folder / "r/.git/HEAD", head);
    EXPECT_EQ(git_commit(folder / "r"), "") << head;
  }
}

}  // namespace
}  // namespace cleave::provenance_test
