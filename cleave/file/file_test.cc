#include "cleave/file/file.h"

#include <cerrno>
#include <csignal>
#include <fstream>
#include <memory>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/file/atomic_write.h"
#include "cleave/file/bare_lock.h"
#include "cleave/file/fault_hook.h"
#include "cleave/file/file_lock.h"
#include "tests/support/forbidden_call.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::file_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// Runs `body` in a child process; what it returns is the child's exit status.
template <class Body>
int status_of_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int result = 99;
    try {
      result = body();
    } catch (...) {
    }
    ::_exit(result);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// posix_fallocate() would write into every block, which takes hours for a checkpoint on NFS.
TEST(File, AllocateOnADiskThatReservesNoSpace_WritesNothing) {
  constexpr uint64_t kBytes = uint64_t{64} << 20;
  const TempFolder folder;
  test::without_call(SYS_fallocate, EOPNOTSUPP, [&] {
    File file = File::create(folder / "f");
    file.allocate(kBytes);
    struct stat seen {};
    ASSERT_EQ(::stat((folder / "f").c_str(), &seen), 0);
    EXPECT_EQ(file.size(), kBytes);
    EXPECT_LT(seen.st_blocks, 16);
  });
}

TEST(File, WritesInPlaceByTwoHandles_AreAllStored) {
  const TempFolder folder;
  File first = File::create(folder / "f");
  first.allocate(10);
  EXPECT_EQ(first.size(), 10u);
  first.write_at(0, bytes_of("hello"));
  File second = File::open_write(folder / "f");
  second.write_at(5, bytes_of("world"));
  for (File* file : {&first, &second}) {
    file->sync();
    file->close();
    EXPECT_FALSE(file->is_open());
  }
  EXPECT_EQ(read_file(folder / "f"), "helloworld");
}

TEST(File, ReadBeyondTheEnd_ReportsWhereItEnds) {
  const TempFolder folder;
  write_atomic(folder / "f", std::string_view("12345"));
  const File file = File::open_read(folder / "f");
  std::array<std::byte, 4> bytes{};
  const Error error = thrown_by([&] { file.read_at(3, bytes); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("ends at byte 5; expected 4 bytes from byte 3"));
}

TEST(File, MissingExistingAndSpecialFiles_AreRefusedByName) {
  const TempFolder folder;
  const Error missing = thrown_by([&] { File::open_read(folder / "none"); });
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_THAT(missing.what(), HasSubstr("none: open failed: No such file or directory"));
  write_atomic(folder / "f", std::string_view("1"));
  EXPECT_THAT(thrown_by([&] { File::create(folder / "f"); }).what(), HasSubstr("File exists"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(thrown_by([&] { File::open_read(folder / "pipe"); }).what(), HasSubstr("pipe"));
  EXPECT_THAT(thrown_by([&] { File::open_read(folder.path()); }).what(), HasSubstr("is a folder"));
  EXPECT_EQ(thrown_by([&] { read_file(folder / "f", 0); }).code(), Code::kFormat);
}

// What `git clone` without Git LFS leaves of a model's weights.
TEST(File, PointerOfGitLfs_IsRefusedWithTheCommandThatFetchesTheFile) {
  const TempFolder folder;
  const std::string spec =
      "version https:"
      "//git-lfs.github.com/spec/";
  const std::string pointer = spec + "v1\noid sha256:4d7a2146\nsize 12345\n";
  std::ofstream(folder / "model.safetensors") << pointer;
  const Error refused = thrown_by([&] { (void)File::open_read(folder / "model.safetensors"); });
  EXPECT_EQ(refused.code(), Code::kFormat);
  EXPECT_EQ(std::string(refused.what()),
            (folder / "model.safetensors").string() +
                " is a pointer of Git LFS, not the file itself; fetch it with: git lfs pull");
  EXPECT_EQ(
      thrown_by([&] { (void)File::open_read_below(folder.path(), "model.safetensors"); }).code(),
      Code::kFormat);
  for (const std::string& text :
       {std::string(), spec.substr(1), " " + pointer, pointer + std::string(1000, ' ')}) {
    std::ofstream(folder / "text") << text;
    EXPECT_EQ(read_file(folder / "text"), text);
  }
}

TEST(File, WriteIntoAMissingFolder_IsRefusedByTheFoldersName) {
  const TempFolder folder;
  const Error error =
      thrown_by([&] { write_atomic(folder / "none/page.html", std::string_view("1")); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_EQ(error.what(), std::string(folder / "none") +
                              ": no such folder, so that page.html cannot be written in it; make "
                              "it first");
}

TEST(File, ModeHonoursTheUmaskAndIsNeverWorldWritable) {
  const TempFolder folder;
  const mode_t before = ::umask(0);
  write_atomic(folder / "open", std::string_view("1"));
  EXPECT_EQ(File::create(folder / "own", 0600).path(), folder / "own");
  ::umask(077);
  write_atomic(folder / "closed", std::string_view("1"));
  ::umask(before);
  EXPECT_EQ(static_cast<unsigned>(fs::status(folder / "open").permissions()), 0664u);
  EXPECT_EQ(static_cast<unsigned>(fs::status(folder / "own").permissions()), 0600u);
  EXPECT_EQ(static_cast<unsigned>(fs::status(folder / "closed").permissions()), 0600u);
}

TEST(IsFileName, PathsAndControlCharacters_AreNot) {
  for (const char* good : {"a", "model.safetensors", "a b", "a..b", "\xC3\xBC"}) {
    EXPECT_TRUE(is_file_name(good)) << good;
  }
  EXPECT_TRUE(is_file_name(std::string(255, 'x')));
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), std::string(".hidden"),
        std::string("a/b"), std::string("/a"), std::string("a\\b"), std::string("a\n"),
        std::string("a\0b", 3), std::string(256, 'x')}) {
    EXPECT_FALSE(is_file_name(bad)) << bad;
  }
}

TEST(WriteAtomic, FailureAtEveryCall_LeavesTheOldFileOrTheNew) {
  const TempFolder folder;
  const std::string old_text(100, 'o');
  const std::string new_text(3 * kWriteChunk, 'n');
  int num_calls = 0;
  for (int failing = 0; failing == 0 || failing <= num_calls; ++failing) {
    write_atomic(folder / "f", old_text);
    int calls = 0;
    std::string message;
    {
      const ScopedFileHook hook(
          [&](FileCall, const std::string&) { return ++calls == failing ? EIO : 0; });
      try {
        write_atomic(folder / "f", new_text);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kIo);
        message = error.what();
      }
    }
    if (failing == 0) num_calls = calls;
    const std::string text = read_file(folder / "f");
    EXPECT_EQ(message.empty(), failing == 0);
    EXPECT_THAT(message, HasSubstr(failing > 0 ? "Input/output error" : ""));
    EXPECT_TRUE(text == new_text || (failing > 0 && text == old_text)) << "call " << failing;
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << "leftovers";
  }
  EXPECT_EQ(num_calls, 1 + 3 + 1 + 1 + 1 + 1);  // open, pwrite x 3, fsync, close, rename, folder
}

TEST(WriteAtomic, FileSizeLimit_IsAnErrorAndTheOldFileStays) {
  const TempFolder folder;
  write_atomic(folder / "f", std::string_view("old"));
  const int status = status_of_child([&] {
    const rlimit limit{100000, 100000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Error error = thrown_by([&] { write_atomic(folder / "f", std::string(200000, 'n')); });
    const bool named = std::string(error.what()).find("f.partial: pwrite failed: File too large") !=
                       std::string::npos;
    return named && error.code() == Code::kIo ? 0 : 1;
  });
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_file(folder / "f"), "old");
}

TEST(SwapDurably, Folders_SwapNamesOrStayUnchanged) {
  const TempFolder folder;
  for (const char* name : {"a", "b"}) {
    fs::create_directory(folder / name);
    write_atomic(folder / str(name, "/file"), name);
  }
  swap_durably(folder / "a", folder / "b");
  EXPECT_EQ(read_file(folder / "a/file"), "b");
  EXPECT_EQ(read_file(folder / "b/file"), "a");
  EXPECT_EQ(thrown_by([&] { swap_durably(folder / "a", folder / "none"); }).code(), Code::kIo);
  const ScopedFileHook hook(
      [](FileCall call, const std::string&) { return call == FileCall::kRename ? EIO : 0; });
  EXPECT_EQ(thrown_by([&] { swap_durably(folder / "a", folder / "b"); }).code(), Code::kIo);
  EXPECT_EQ(read_file(folder / "a/file"), "b");
}

// NFS, sshfs.
TEST(SwapDurably, FileSystemThatDoesNotSwap_RenamesOneByOne) {
  const TempFolder folder;
  for (const char* name : {"a", "b"}) {
    fs::create_directory(folder / name);
    write_atomic(folder / str(name, "/file"), name);
  }
  fs::create_directories(folder / "b.old.partial/left by a crash");
  test::without_call(SYS_renameat2, EINVAL, [&] {
    swap_durably(folder / "a", folder / "b");
    EXPECT_EQ(thrown_by([&] { swap_durably(folder / "none", folder / "b"); }).code(), Code::kIo);
  });
  EXPECT_EQ(read_file(folder / "a/file"), "b");
  EXPECT_EQ(read_file(folder / "b/file"), "a");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

TEST(FreeSpace, MoreThanTheDiskHas_NamesBothNumbers) {
  const TempFolder folder;
  EXPECT_NO_THROW(require_free_space(folder.path(), 1));
  const Error error = thrown_by([&] { require_free_space(folder.path(), uint64_t{1} << 60); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr("1152921504606846976 bytes are needed"));
}

TEST(MakeFolderAbove, MissingFolders_AreMade) {
  const TempFolder folder;
  EXPECT_EQ(make_folder_above(folder / "a/b/c"), folder.path() / std::filesystem::path("a/b"));
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a/b/c"));
  EXPECT_NO_THROW(make_folder_above(folder / "a/b/d"));
  EXPECT_EQ(make_folder_above(folder / "a/b/e/"), folder.path() / std::filesystem::path("a/b"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a/b/e"));
  write_atomic(folder / "file", std::string_view("x"));
  EXPECT_EQ(thrown_by([&] { make_folder_above(folder / "file/x"); }).code(), Code::kIo);
}

TEST(FileLock, SecondWriter_GetsPidAndHostOfTheFirst) {
  const TempFolder folder;
  {
    const FileLock lock(folder.path());
    const Error error = thrown_by([&] { FileLock second(folder.path()); });
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.what(), HasSubstr(str("pid ", ::getpid(), " on ")));
  }
  EXPECT_NO_THROW(FileLock(folder.path()));
  EXPECT_TRUE(fs::is_empty(folder.path())) << "the lock's file must be removed with it";
}

TEST(FileLock, OfAName_LeavesOtherNamesFree) {
  const TempFolder folder;
  {
    const FileLock whole(folder.path()), a(folder.path(), "a");
    EXPECT_NO_THROW(FileLock(folder.path(), "b"));
    const Error error = thrown_by([&] { FileLock second(folder.path(), "a"); });
    EXPECT_THAT(error.what(), HasSubstr((folder / "a").string() + " is being written by pid "));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// As on Lustre without -o flock, and on NFS without its lock service.
TEST(FileLock, DiskWithoutLocks_WarnsAndIsWritten) {
  const TempFolder folder;
  for (const int error : {ENOSYS, EOPNOTSUPP, ENOLCK}) {
    const ScopedFileHook hook(
        [&](FileCall call, const std::string&) { return call == FileCall::kLock ? error : 0; });
    testing::internal::CaptureStderr();
    { const FileLock lock(folder.path()); }
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr(" is on a disk without file locks ("));
    // A folder that may be in use is not cleaned up.
    EXPECT_EQ(thrown_by([&] { BareLock bare(folder.path()); }).code(), Code::kIo);
  }
}

// The holder ends and removes the file after another process opened it and before it locks it.
TEST(FileLock, NameRemovedWhileItOpens_LocksTheNewFile) {
  const TempFolder folder;
  auto first = std::make_unique<FileLock>(folder.path());
  int opens = 0;
  const ScopedFileHook hook([&](FileCall call, const std::string&) {
    if (call == FileCall::kOpen && ++opens == 1) first.reset();
    return 0;
  });
  const FileLock second(folder.path());
  EXPECT_EQ(opens, 2);  // the old file, then a new one
  EXPECT_TRUE(fs::exists(folder / ".lock"));
  EXPECT_THAT(thrown_by([&] { FileLock third(folder.path()); }).what(), HasSubstr("pid "));
}

TEST(FileLock, FailureWhileItIsTaken_LeavesNothing) {
  const TempFolder folder;
  for (int failing = 1; failing <= 2; ++failing) {
    int calls = 0;
    const ScopedFileHook hook([&](FileCall call, const std::string&) {
      return call != FileCall::kLock && ++calls == failing ? ENOSPC : 0;
    });
    EXPECT_EQ(thrown_by([&] { FileLock lock(folder.path()); }).code(), Code::kIo);
    EXPECT_TRUE(fs::is_empty(folder.path())) << failing;
  }
}

TEST(FileLock, KilledHolder_DoesNotBlock) {
  const TempFolder folder;
  const int status = status_of_child([&] {
    const FileLock lock(folder.path());
    return ::raise(SIGKILL);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_NO_THROW(FileLock(folder.path()));
}

TEST(ScopedFileHook, SecondAtTheSameTime_IsRefused) {
  const auto pass = [](FileCall, const std::string&) { return 0; };
  const ScopedFileHook hook(pass);
  EXPECT_EQ(thrown_by([&] { ScopedFileHook second(pass); }).code(), Code::kUsage);
}

}  // namespace
}  // namespace cleave::file_test
