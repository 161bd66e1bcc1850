#include "cleave/checkpoint/run_folder.h"

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/names.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/fault_hook.h"
#include "cleave/file/model_path.h"
#include "cleave/format/manifest.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::run_folder_test {
namespace {

namespace fs = std::filesystem;
using test::expect_file_is_whole;
using test::on_layout;
using test::TempFolder;
using test::thrown_by;
using test::Training;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kNumTensors = 3 + 2 * 9;  // of test::kLlamaConfig

std::vector<std::string> names_in(const fs::path& run) {
  std::vector<std::string> names;
  for (const fs::path& folder : list_checkpoints(run)) names.push_back(folder.filename());
  return names;
}

// Oracle: the sizes of the files that the save then writes. The required space exceeds them by a
// disk block for each file and the bound on the manifest.
TEST(RunFolder, RequiredSpace_IsLittleAboveTheWrittenBytes) {
  const TempFolder folder;
  uint64_t required = 0;
  on_layout({2, 1}, [&](const Writers& writers) {
    RunFolder run(folder.path(), writers);
    const Training training(writers.tp);
    const Checkpoint checkpoint = training.checkpoint(1);
    if (writers.world.rank() == 0) required = disk_bytes(contents_of(checkpoint), writers);
    run.save(checkpoint);
  });
  uint64_t written = 0, num_files = 0;
  for (const auto& entry : fs::directory_iterator(folder / "step_00000001")) {
    written += entry.file_size();
    ++num_files;
  }
  EXPECT_GE(required, written + num_files * kDiskBlock);
  EXPECT_LE(required, written + (num_files + 6) * kDiskBlock + 3 * kNumTensors * 2 * 256);
}

TEST(RunFolder, MoreCheckpointsThanTheDiskHolds_AreRefusedBeforeTheFirst) {
  const TempFolder folder;
  const Axis one;
  const Training training(one);
  const Checkpoint checkpoint = training.checkpoint(1);
  const RunFolder run(folder.path(), {one, one, one});
  EXPECT_NO_THROW(run.require_space(checkpoint, 2, false));
  const Error error = thrown_by([&] { run.require_space(checkpoint, int64_t{1} << 50, false); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr("1125899906842624 checkpoints of "));
  EXPECT_THAT(error.what(), HasSubstr("free; give --out a folder on another disk, or keep fewer"));
  const TempFolder other;
  EXPECT_NO_THROW(RunFolder(other.path(), {one, one, one}, 2)
                      .require_space(checkpoint, int64_t{1} << 50, false));
}

// Four checkpoints exist while the fourth is written: two newest ones and the best of the run.
TEST(RunFolder, BestCheckpointBesideTheNewest_NeedsItsSpaceToo) {
  constexpr int64_t kMany = int64_t{1} << 40;
  const Axis one;
  const Training training(one);
  const Checkpoint checkpoint = training.checkpoint(1);
  const auto planned = [&](int64_t keep_last, int64_t num_saves) {
    const TempFolder other;
    const RunFolder run(other.path(), {one, one, one}, keep_last);
    const Error error =
        thrown_by([&] { run.require_space(checkpoint, num_saves, /*keeps_one=*/true); });
    return std::string(error.what());
  };
  EXPECT_THAT(planned(kMany, 2 * kMany), HasSubstr(str(kMany + 2, " checkpoints of ")));
  EXPECT_THAT(planned(kMany, kMany + 1), HasSubstr(str(kMany + 1, " checkpoints of ")));
}

TEST(RunFolder, KeepLast_RemovesTheOldestAfterTheNewWasVerified) {
  const TempFolder folder;
  on_layout({2, 1}, [&](const Writers& writers) {
    RunFolder run(folder.path(), writers, 2);
    const Training training(writers.tp);
    for (const int64_t step : {9, 10, 11, 100}) run.save(training.checkpoint(step));
  });
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step_00000011", "step_00000100"));
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000100");
}

TEST(RunFolder, DamagedNewCheckpoint_RemovesNothing) {
  const TempFolder folder;
  const Axis one;
  RunFolder run(folder.path(), {one, one, one}, 1);
  const Training training(one);
  run.save(training.checkpoint(1));
  bool damaged = false;
  const ScopedFileHook hook([&](FileCall call, const std::string& path) {
    // Changes a byte after everything is written, before it is read back.
    if (call == FileCall::kRename && path.ends_with("latest") && !damaged) {
      damaged = true;
      std::FILE* file = std::fopen((folder / "step_00000002/model.safetensors").c_str(), "r+b");
      std::fseek(file, -1, SEEK_END);
      std::fputc('x', file);
      std::fclose(file);
    }
    return 0;
  });
  EXPECT_THAT(thrown_by([&] { run.save(training.checkpoint(2)); }).what(), HasSubstr("lm_head"));
  EXPECT_TRUE(damaged);
  EXPECT_THAT(find_damage(folder / "step_00000001"), IsEmpty());
}

// The first rank, which removes old checkpoints, finds its own share intact.
TEST(RunFolder, NewCheckpointDamagedInTheLastRanksShare_RemovesNothing) {
  const TempFolder folder;
  std::atomic<bool> damages = false;
  const ScopedFileHook hook([&](FileCall call, const std::string& path) {
    if (call != FileCall::kRename || !path.ends_with("latest") || !damages) return 0;
    std::fstream file(folder / "step_00000002/optimizer.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
    return 0;
  });
  const Error error = thrown_by([&] {
    on_layout({2, 1}, [&](const Writers& writers) {
      RunFolder run(folder.path(), writers, 1);
      const Training training(writers.tp);
      run.save(training.checkpoint(1));
      damages = true;
      run.save(training.checkpoint(2));
    });
  });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("step_00000002 is damaged"));
  EXPECT_THAT(find_damage(folder / "step_00000002", {.index = 0, .count = 2}), IsEmpty());
  EXPECT_THAT(find_damage(folder / "step_00000001"), IsEmpty());
}

TEST(RunFolder, FailureAfterAllRanksHaveWritten_IsOneOfAllRanks) {
  const TempFolder folder;
  std::atomic<int> num_saved = 0;
  const ScopedFileHook hook([](FileCall call, const std::string& path) {
    return call == FileCall::kRename && path.find("step_00000001") != std::string::npos ? EIO : 0;
  });
  const Error error = thrown_by([&] {
    on_layout({1, 3}, [&](const Writers& writers) {
      RunFolder run(folder.path(), writers);
      run.save(Training(writers.tp).checkpoint(1));
      ++num_saved;
    });
  });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_EQ(num_saved, 0);
  EXPECT_FALSE(newest_checkpoint(folder.path()).has_value());
}

TEST(RunFolder, SameStepAgain_IsNotWrittenAgain) {
  const TempFolder folder;
  const Axis one;
  const Training training(one);
  RunFolder run(folder.path(), {one, one, one});
  const fs::path saved = run.save(training.checkpoint(4));
  const auto written = fs::last_write_time(saved / "manifest.json");
  EXPECT_EQ(run.save(training.checkpoint(4)), saved);
  EXPECT_EQ(fs::last_write_time(saved / "manifest.json"), written);
}

TEST(RunFolder, WriterThatDiedBeforeNamingItsCheckpoint_IsRepairedAtTheNextStart) {
  const TempFolder folder;
  const Axis one;
  const Training training(one);
  {
    RunFolder run(folder.path(), {one, one, one});
    run.save(training.checkpoint(4));
    run.save(training.checkpoint(8));
  }
  write_atomic(folder / "latest", "step_00000004\n");
  fs::last_write_time(folder / "latest", fs::last_write_time(folder / "step_00000004/config.json"));
  fs::create_directory(folder / "step_00000012.partial");
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000004");
  EXPECT_EQ(checkpoint_to_resume(folder.path()), folder / "step_00000008");
  const RunFolder again(folder.path(), {one, one, one});
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000008");
  EXPECT_FALSE(fs::exists(folder / "step_00000012.partial"));
  EXPECT_THAT(thrown_by([&] {
                RunFolder(folder.path(), {one, one, one});
              }).what(),
              HasSubstr("is being written by pid"));
}

TEST(RunFolder, GoingBack_NamesTheOldOneAndRenamesNewerOnes) {
  const TempFolder folder;
  for (const std::string ending : {".damaged", ".damaged2", ".damaged3"}) {
    on_layout({1, 2}, [&](const Writers& writers) {
      RunFolder run(folder.path(), writers);
      const Training training(writers.tp);
      for (const int64_t step : {1, 2, 3}) run.save(training.checkpoint(step));
      run.go_back_to(folder / "step_00000001", ".damaged");
      EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000001");
      writers.world.barrier("the test has read what is newest");
    });
    EXPECT_THAT(names_in(folder.path()), ElementsAre("step_00000001"));
    for (const std::string name : {"step_00000002", "step_00000003"}) {
      EXPECT_THAT(find_damage(folder / (name + ending)), IsEmpty());
    }
  }
}

TEST(RunFolder, InvalidOptionsAndPaths_AreRefused) {
  const TempFolder folder;
  const Axis one;
  const Error number = thrown_by([&] { RunFolder(folder / "run", {one, one, one}, -1); });
  EXPECT_EQ(number.code(), Code::kUsage);
  EXPECT_THAT(number.what(), HasSubstr("keep-last is -1"));
  EXPECT_FALSE(fs::exists(folder / "run"));
  write_atomic(folder / "file", "");
  const Error file = thrown_by([&] { RunFolder(folder / "file/run", {one, one, one}); });
  EXPECT_EQ(file.code(), Code::kIo);
  EXPECT_THAT(file.what(), HasSubstr("file/run: mkdir failed: Not a directory"));
}

TEST(RunFolder, WithoutAnyCheckpoint_HasNoIntactOne) {
  const TempFolder folder;
  EXPECT_FALSE(newest_intact_checkpoint(folder.path()).has_value());
  EXPECT_FALSE(newest_intact_checkpoint(folder / "nowhere").has_value());
  fs::create_directory(folder / "step_00000001");  // without a manifest: never finished
  EXPECT_FALSE(newest_intact_checkpoint(folder.path()).has_value());
  EXPECT_THAT(list_checkpoints(folder.path()), IsEmpty());
}

/// Makes every open of a file fail with a system error: replaces it with a socket.
void make_unreadable(const fs::path& path) {
  fs::remove(path);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(path.string().size(), sizeof address.sun_path);
  std::strcpy(address.sun_path, path.c_str());
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  close(fd);
}

TEST(RunFolder, OlderNameWrittenLater_IsTheOneToResumeFrom) {
  const TempFolder folder;
  const Axis one;
  const Training training(one);
  EXPECT_EQ(checkpoint_to_resume(folder.path()), std::nullopt);
  {
    RunFolder run(folder.path(), {one, one, one});
    for (const int64_t step : {4, 8, 12}) run.save(training.checkpoint(step));
  }
  EXPECT_EQ(checkpoint_to_resume(folder.path()), folder / "step_00000012");
  write_atomic(folder / "latest", "step_00000004\n");
  fs::last_write_time(
      folder / "latest",
      fs::last_write_time(folder / "step_00000012/manifest.json") + std::chrono::seconds(1));
  RunFolder run(folder.path(), {one, one, one});
  EXPECT_EQ(checkpoint_to_resume(folder.path()), folder / "step_00000004");
  const auto aside = run.go_back_to(folder / "step_00000004", ".superseded");
  EXPECT_THAT(
      aside, ElementsAre(folder / "step_00000008.superseded", folder / "step_00000012.superseded"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step_00000004"));
}

TEST(RunFolder, CheckpointThatCannotBeRead_IsSkippedForAnOlderOne) {
  const TempFolder folder;
  const Axis one;
  const Training training(one);
  {
    RunFolder run(folder.path(), {one, one, one});
    for (const int64_t step : {1, 2, 3}) run.save(training.checkpoint(step));
  }
  make_unreadable(folder / "step_00000003/model.safetensors");
  const auto whole = newest_intact_checkpoint(folder.path());
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->path, folder / "step_00000002");
  EXPECT_THAT(whole->damage,
              ElementsAre(HasSubstr("step_00000003/model.safetensors: open failed")));
  // A start does not change `latest` if it names another intact one.
  write_atomic(folder / "latest", "step_00000002\n");
  { const RunFolder again(folder.path(), {one, one, one}); }
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000002");
  // If none of those up to the named one can be read, the error is that of the disk.
  for (const char* step : {"step_00000001", "step_00000002"}) {
    make_unreadable(folder / step / "model.safetensors");
  }
  const Error error = thrown_by([&] { (void)newest_intact_checkpoint(folder.path()); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr("step_00000002/model.safetensors: open failed"));
}

// Oracle: one rank, which reads everything.
TEST(RunFolder, DamageInAnyRanksShare_IsReportedToAll) {
  const TempFolder folder;
  on_layout({3, 1}, [&](const Writers& writers) {
    RunFolder run(folder.path(), writers);
    const Training training(writers.tp);
    for (const int64_t step : {1, 2, 3, 4}) run.save(training.checkpoint(step));
  });
  for (int step = 2; step <= 4; ++step) {  // in the share of the first, second and last rank
    const fs::path saved = folder / checkpoint_name(step);
    const fs::path path = saved / (step == 2 ? "model.safetensors" : "optimizer.safetensors");
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(fs::file_size(path)) * (step == 3 ? 1 : 4) / 4 - 1);
    const int byte = file.peek();
    file.seekp(file.tellg());
    file.put(static_cast<char>(byte ^ 1));
    file.close();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(find_damage(saved, {.index = rank, .count = 3}).size(), rank == step - 2 ? 1U : 0U)
          << "step " << step << ", rank " << rank;
    }
  }
  const auto want = newest_intact_checkpoint(folder.path());
  ASSERT_TRUE(want);
  EXPECT_EQ(want->path, folder / "step_00000001");
  ASSERT_EQ(want->damage.size(), 3U);
  on_layout({3, 1}, [&](const Writers& writers) {
    const auto found = newest_intact_checkpoint(folder.path(), writers.world);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->path, want->path);
    EXPECT_EQ(found->damage, want->damage);
  });
}

TEST(RunFolder, LatestThatIsAPath_IsRefused) {
  const TempFolder folder;
  for (const std::string_view name :
       {"../step_00000001", "/etc", "", "step_1", "step_00000001/x"}) {
    write_atomic(folder / "latest", name);
    EXPECT_EQ(thrown_by([&] { newest_checkpoint(folder.path()); }).code(), Code::kFormat) << name;
  }
}

// Fails each call of each rank in turn. The threads race, so which call fails differs between runs.
TEST(RunFolder, FailureAtEveryFileCallOfFourRanks_LeavesAWholeCheckpoint) {
  const TempFolder folder;
  int64_t step = 1;
  int num_calls = 0;
  for (int failing = 0; failing == 0 || failing <= num_calls; failing += failing < 20 ? 1 : 19) {
    ++step;
    std::atomic<int> calls = 0;
    std::string message;
    {
      const ScopedFileHook hook(
          [&](FileCall, const std::string&) { return ++calls == failing ? ENOSPC : 0; });
      try {
        on_layout({2, 2}, [&](const Writers& writers) {
          RunFolder run(folder.path(), writers, 2);
          run.save(Training(writers.tp).checkpoint(step));
        });
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kIo) << error.what();
        message = error.what();
      }
    }
    if (failing == 0) num_calls = calls;
    EXPECT_THAT(message, HasSubstr(failing == 0 ? "" : "No space left on device"))
        << "call " << failing;
    const auto newest = newest_checkpoint(folder.path());
    ASSERT_TRUE(newest);
    EXPECT_THAT(find_damage(*newest), IsEmpty());
    expect_file_is_whole(*newest / "model.safetensors", kNumTensors);
  }
  EXPECT_GT(num_calls, 100);
}

// -- killed ---------------------------------------------------------------------------------------

/// Expects that `latest` names an intact checkpoint and that a start leaves no partial one.
void expect_whole_run(const fs::path& folder, int64_t old_step, int64_t new_step) {
  const auto newest = newest_checkpoint(folder);
  ASSERT_TRUE(newest);
  const std::string name = newest->filename();
  EXPECT_TRUE(name == checkpoint_name(old_step) || name == checkpoint_name(new_step)) << name;
  EXPECT_THAT(find_damage(*newest), IsEmpty());
  expect_file_is_whole(*newest / "model.safetensors", kNumTensors);
  expect_file_is_whole(*newest / "optimizer.safetensors", 2 * kNumTensors);
  const Axis one;
  { const RunFolder again(folder, {one, one, one}, 2); }
  EXPECT_FALSE(newest_checkpoint(folder)->filename() < newest->filename());
  for (const fs::path& checkpoint : list_checkpoints(folder)) {
    EXPECT_THAT(find_damage(checkpoint), IsEmpty());
  }
  // Each other name is a link to the newest checkpoint's file.
  const fs::path newest_name = newest_checkpoint(folder)->filename();
  for (const std::string& left : test::names_below(folder)) {
    if (left == kLatestName || checkpoint_step(left)) continue;
    ASSERT_TRUE(fs::is_symlink(folder / left)) << left;
    EXPECT_EQ(fs::read_symlink(folder / left), newest_name / left);
    EXPECT_TRUE(fs::exists(folder / left)) << left;
  }
}

/// Saves on four ranks in a child process that is killed before its `deadly`-th file call; false if
/// it makes fewer calls.
bool save_killed(const fs::path& folder, int64_t step, int deadly) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::atomic<int> calls = 0;
    const ScopedFileHook hook(
        [&](FileCall, const std::string&) { return ++calls == deadly ? ::raise(SIGKILL) : 0; });
    on_layout({2, 2}, [&](const Writers& writers) {
      RunFolder run(folder, writers, 2);
      run.save(Training(writers.tp).checkpoint(step));
    });
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(was_killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  return was_killed;
}

/// Kills the writer at every `every`-th call. Returns how often.
int kill_saves(const fs::path& folder, int every) {
  int64_t step = 0;
  EXPECT_FALSE(save_killed(folder, step, -1));  // an intact checkpoint first
  for (int deadly = 1; save_killed(folder, ++step, deadly); deadly += every) {
    SCOPED_TRACE(str("killed before call ", deadly));
    expect_whole_run(folder, step - 1, step);
    if (checkpoint_name(step) == newest_checkpoint(folder)->filename()) continue;
    EXPECT_FALSE(save_killed(folder, step, -1));
  }
  return static_cast<int>(step) - 1;
}

TEST(RunFolder, KilledAtManyFileCallsOfFourRanks_LeavesTheOldOrTheNewCheckpoint) {
  const TempFolder folder;
  EXPECT_GE(kill_saves(folder.path(), 61), 5);
}

TEST(RunFolderFull, KilledAtEveryFileCallOfFourRanks_LeavesTheOldOrTheNewCheckpoint) {
  const TempFolder folder;
  EXPECT_GE(kill_saves(folder.path(), 1), 300);
}

// -- asynchronously -------------------------------------------------------------------------------

/// Blocks the file calls of all threads except enrolled ones, until it is opened.
class Gate {
 public:
  Gate() : hook_([this](FileCall, const std::string&) { return pass(); }) {}
  /// Never blocks this thread's calls.
  void enrol() {
    const std::lock_guard lock(mutex_);
    free_.insert(std::this_thread::get_id());
  }
  void open(int error = 0) {
    const std::lock_guard lock(mutex_);
    error_ = error;
    is_open_ = true;
    opened_.notify_all();
  }

 private:
  int pass() {
    std::unique_lock lock(mutex_);
    if (free_.contains(std::this_thread::get_id())) return 0;
    opened_.wait(lock, [this] { return is_open_; });
    return error_;
  }
  std::mutex mutex_;
  std::condition_variable opened_;
  std::set<std::thread::id> free_;
  bool is_open_ = false;
  int error_ = 0;
  ScopedFileHook hook_;
};

TEST(RunFolderAsync, WeightsThatChangeWhileTheThreadWrites_AreSavedAsTheyWere) {
  for (const test::Layout& layout : {test::Layout{1, 1}, test::Layout{2, 2}}) {
    const TempFolder folder;
    Gate gate;
    on_layout(layout, [&](const Writers& writers) {
      gate.enrol();
      RunFolder run(folder.path(), writers);
      const Training training(writers.tp);
      run.async_save(training.checkpoint(5));
      for (const auto& p : training.model->parameters()) p->leaf().detach().fill_(9);
      EXPECT_TRUE(run.poll_save());
      EXPECT_FALSE(newest_checkpoint(folder.path()));
      writers.world.barrier("the test has seen that nothing is there");
      gate.open();
      run.wait_for_save();
      EXPECT_FALSE(run.poll_save());
    });
    EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000005");
    EXPECT_THAT(find_damage(folder / "step_00000005"), IsEmpty());
    expect_file_is_whole(folder / "step_00000005/model.safetensors", kNumTensors);
    expect_file_is_whole(folder / "step_00000005/optimizer.safetensors", 2 * kNumTensors);
  }
}

TEST(RunFolderAsync, FailureInTheThread_StopsTheNextStepAndKeepsTheOldCheckpoint) {
  const TempFolder folder;
  Gate gate;
  const Error error = thrown_by([&] {
    on_layout({2, 2}, [&](const Writers& writers) {
      gate.enrol();
      RunFolder run(folder.path(), writers);
      const Training training(writers.tp);
      run.save(training.checkpoint(1));
      run.async_save(training.checkpoint(2));
      gate.open(EIO);
      while (run.poll_save()) std::this_thread::yield();
      ADD_FAILURE() << "a failed save was completed";
    });
  });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr("Input/output error"));
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000001");
  EXPECT_FALSE(fs::exists(folder / "step_00000002"));
  EXPECT_THAT(find_damage(folder / "step_00000001"), IsEmpty());
}

TEST(RunFolderAsync, SecondSave_WaitsForTheFirst) {
  const TempFolder folder;
  const Axis one;
  std::atomic<bool> first_is_named = false;
  bool began_early = false;
  const ScopedFileHook hook([&](FileCall call, const std::string& path) {
    if (call == FileCall::kRename && path.ends_with("latest")) first_is_named = true;
    if (path.find("step_00000002") != std::string::npos && !first_is_named) began_early = true;
    return 0;
  });
  RunFolder run(folder.path(), {one, one, one});
  const Training training(one);
  run.async_save(training.checkpoint(1));
  run.async_save(training.checkpoint(2));
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000001");
  run.wait_for_save();
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000002");
  EXPECT_FALSE(began_early);
}

TEST(RunFolderAsync, EndWithoutWaiting_LeavesTheOldCheckpointAndNothingAfterTheNextStart) {
  const TempFolder folder;
  const Axis one;
  const Training training(one);
  {
    RunFolder run(folder.path(), {one, one, one});
    run.save(training.checkpoint(1));
    run.async_save(training.checkpoint(2));
  }
  const RunFolder again(folder.path(), {one, one, one});
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000001");
  EXPECT_THAT(test::names_below(folder.path()),
              ElementsAre(".lock", "config.json", "latest", "model.safetensors", "step_00000001",
                          "tokenizer.json"));
}

}  // namespace
}  // namespace cleave::run_folder_test
