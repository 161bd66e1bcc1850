#include "cleave/checkpoint/run_folder.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/base/byte_count.h"
#include "cleave/base/byte_progress.h"
#include "cleave/base/clock.h"
#include "cleave/base/hash.h"
#include "cleave/base/log.h"
#include "cleave/checkpoint/model_links.h"
#include "cleave/checkpoint/names.h"
#include "cleave/comm/shm/rank_endpoint.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/model_path.h"
#include "cleave/format/manifest.h"
#include "cleave/mesh/job.h"

namespace cleave::inline checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxLockBytes = 4096;

/// The first damage of a checkpoint; nullopt if it is intact. An unreadable file, as on a bad
/// sector, is damage of this checkpoint only: others may be readable.
std::optional<Error> damage_of(const fs::path& checkpoint, const VerifyShare& share = {}) {
  try {
    const std::vector<std::string> problems = find_damage(checkpoint, share);
    if (problems.empty()) return std::nullopt;
    return Error(Code::kFormat, str(checkpoint.string(), " is damaged: ", problems.front()));
  } catch (...) {
    const Error error = as_error(std::current_exception());
    if (error.code() != Code::kFormat && error.code() != Code::kIo) throw;
    const bool is_read = error.code() == Code::kFormat;
    return Error(error.code(), str(checkpoint.string(),
                                   is_read ? " is damaged: " : " is unreadable: ", error.what()));
  }
}

/// The damage that the first rank with any has found, on all ranks; nullopt if no rank has.
std::optional<Error> broadcast_damage(const std::optional<Error>& mine, const Axis& world) {
  constexpr std::string_view kSite = "restart: is the checkpoint whole";
  constexpr size_t kMostBytes = 1024;
  const int64_t own = mine ? world.size() - world.rank() : 0;
  const auto finder = world.all_reduce(at::tensor({own}, at::kLong), kSite, ReduceOp::kMax);
  if (finder.item<int64_t>() == 0) return std::nullopt;
  std::string message = mine ? str(static_cast<int>(mine->code()), ' ', mine->what()) : "";
  message.resize(kMostBytes);
  Tensor bytes =
      at::from_blob(message.data(), {static_cast<int64_t>(kMostBytes)}, at::kByte).clone();
  world.broadcast_(bytes, static_cast<int>(world.size() - finder.item<int64_t>()), kSite);
  const auto* text = reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>());
  message.assign(text, strnlen(text, kMostBytes));
  const size_t space = message.find(' ');
  return Error(static_cast<Code>(std::stoi(message.substr(0, space))), message.substr(space + 1));
}

/// The checksum of the text in the folder's lock, which names its holder; 0 if there is none.
int64_t holder_in(const fs::path& run) {
  try {
    return static_cast<int64_t>(hash_bytes(read_file(run / ".lock", kMaxLockBytes)));
  } catch (const Error&) {
    return 0;
  }
}

/// Waits until every rank sees what rank 0 sees on the disk, and refuses a folder in which one does
/// not: it is on another disk. Network disks may show a new file late. All ranks wait together, so
/// that none changes the folder, or waits for another one for long, before all have seen it.
template <class Sees>
void require_seen(const Axis& world, std::string_view site, const std::string& what,
                  const Sees& sees) {
  constexpr double kLimitS = 10;
  const double start = monotonic_s();
  while (true) {
    const int64_t blind = sees() ? 0 : world.size() - world.rank();
    const int64_t is_late = monotonic_s() - start > kLimitS ? 1 : 0;
    const Tensor all =
        world.all_reduce(at::tensor({blind, is_late}, at::kLong), site, ReduceOp::kMax);
    const int64_t most = all[0].item<int64_t>();
    if (most == 0) return;
    // Only one rank throws, so that all ranks report the same error.
    if (all[1].item<int64_t>() != 0) {
      CLEAVE_CHECK(blind != most, Code::kIo, what, ": rank ", world.rank(), " does not see what ",
                   "rank 0 writes there; --out must be one folder on a disk that all hosts share");
      world.barrier(site);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// Refuses a folder in which a rank does not see the lock of rank 0: no checkpoint could be
/// completed in it.
void require_shared(const fs::path& run, const Axis& world) {
  constexpr std::string_view kSite = "run folder: is it shared";
  Tensor holder = at::tensor({world.rank() == 0 ? holder_in(run) : 0}, at::kLong);
  world.broadcast_(holder, 0, kSite);
  std::error_code ignored;
  // Asks the disk, not this host's memory of it.
  if (world.rank() != 0) fs::create_directories(run, ignored);
  require_seen(world, kSite, run.string(),
               [&] { return world.rank() == 0 || holder_in(run) == holder.item<int64_t>(); });
}

/// Refuses a folder that this host has mounted for reading only, or in which this rank's user may
/// not write: the first save would fail.
void require_writable(const fs::path& run) {
  if (::access(run.c_str(), W_OK | X_OK) != 0) throw_io(run.string(), "access to write", errno);
}

/// Appends `suffix` to a path's name, and a number if that name exists. Returns the new path.
fs::path set_aside(const fs::path& path, const std::string& suffix) {
  fs::path aside = path.string() + suffix;
  for (int n = 2; fs::exists(aside); ++n) aside = str(path.string(), suffix, n);
  rename_durably(path, aside);
  return aside;
}

/// Sets aside a folder that has the name of the next checkpoint but no manifest, so is no
/// checkpoint: it was made by hand, or another program left it.
void clear_name(const fs::path& target) {
  if (!fs::exists(fs::symlink_status(target)) || fs::exists(target / kManifestName)) return;
  const fs::path aside = set_aside(target, ".damaged");
  log_warning(target.string(), " has no ", kManifestName, ", so it is no checkpoint; it was ",
              "renamed to ", aside.string());
}

/// What to do if this checkpoint of a run is damaged.
std::string remedy_of(const fs::path& checkpoint) {
  const fs::path run = checkpoint.parent_path();
  const auto step = checkpoint_step(checkpoint.filename().string());
  std::string older;
  for (const fs::path& other : list_checkpoints(run)) {
    const std::string name = other.filename();
    if (step && checkpoint_step(name) < step) older = name;
  }
  if (older.empty()) return "restore it, or start again in another folder";
  return str("restore it, or resume from an older one: write ", older, " into ",
             (run / kLatestName).string());
}

/// Whether a thread has ended, without waiting for it.
bool has_ended(const std::future<void>& thread) {
  return thread.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

/// The value of the first rank, on all ranks.
bool broadcast_flag(bool mine, const Axis& world, std::string_view site) {
  Tensor flag = at::tensor({mine ? 1 : 0}, at::kLong);
  world.broadcast_(flag, 0, site);
  return flag.item<int64_t>() != 0;
}

}  // namespace

RunFolder::RunFolder(fs::path path, Writers writers, int64_t keep_last)
    : path_(std::move(path)), writers_(std::move(writers)), keep_last_(keep_last) {
  CLEAVE_CHECK(keep_last_ >= 0, Code::kUsage, "keep-last is ", keep_last_,
               "; expected the number of checkpoints to keep, or 0 for all");
  if (writers_.world.rank() == 0) {
    std::error_code code;
    fs::create_directories(path_, code);
    if (code) throw_io(path_.string(), "mkdir", code.value());
    lock_ = std::make_unique<FileLock>(path_);
    remove_leftovers(path_);
    const auto newest = checkpoint_to_resume(path_);
    if (newest) name_newest(*newest);
  }
  require_shared(path_, writers_.world);
  require_writable(path_);
  writers_.world.barrier("run folder opened");
}

RunFolder::~RunFolder() {
  is_left_ = true;
}

void RunFolder::require_space(const Checkpoint& checkpoint, int64_t num_saves,
                              bool keeps_one) const {
  if (num_saves == 0) return;
  int64_t at_once = num_saves;
  if (keep_last_ > 0) {
    // An old one is removed only after a newer one is complete.
    const auto there = static_cast<int64_t>(list_checkpoints(path_).size());
    const int64_t most = keep_last_ + 1 + (keeps_one ? 1 : 0);
    at_once = std::max<int64_t>(1, std::min(num_saves, most - there));
  }
  const uint64_t each = disk_bytes(contents_of(checkpoint), writers_);
  const uint64_t available = free_space(path_);
  CLEAVE_CHECK(static_cast<uint64_t>(at_once) <= available / each, Code::kIo, path_.string(), ": ",
               at_once, at_once == 1 ? " checkpoint of " : " checkpoints of ", bytes_text(each),
               at_once == 1 ? " is planned" : " are planned to exist at the same time",
               " and the disk has ", bytes_text(available),
               " free; give --out a folder on another disk",
               at_once > 2 ? ", or keep fewer with --keep-last" : "");
}

std::vector<fs::path> RunFolder::go_back_to(const fs::path& checkpoint, const std::string& suffix) {
  std::vector<fs::path> moved;
  if (writers_.world.rank() == 0) {
    name_newest(checkpoint);
    for (const fs::path& newer : list_checkpoints(path_)) {
      if (checkpoint_step(newer.filename().string()) <=
          checkpoint_step(checkpoint.filename().string())) {
        continue;
      }
      moved.push_back(set_aside(newer, suffix));
    }
  }
  writers_.world.barrier("run folder went back");
  return moved;
}

fs::path RunFolder::save(const Checkpoint& checkpoint) {
  if (begin(checkpoint)) {
    save_->write();
    publish();
    retire();
  }
  return path_ / checkpoint_name(checkpoint.step);
}

void RunFolder::async_save(const Checkpoint& checkpoint) {
  if (begin(checkpoint)) save_->write_async();
}

bool RunFolder::poll_save() {
  const bool is_pending = save_ != nullptr;
  if (!is_pending && !check_.valid()) return false;
  const bool is_done = is_pending ? save_->is_written() : has_ended(check_);
  const Tensor mine = at::tensor({is_done ? 0 : 1}, at::kLong);
  const Tensor waits = writers_.world.all_reduce(mine, "save: is it written", ReduceOp::kMax);
  if (waits.item<int64_t>() != 0) return is_pending;
  is_pending ? publish() : retire();
  return false;
}

void RunFolder::wait_for_save() {
  if (save_ != nullptr) publish();
  retire();
}

/// Makes the new checkpoint's files; false if it exists already.
bool RunFolder::begin(const Checkpoint& checkpoint) {
  wait_for_save();
  const fs::path target = path_ / checkpoint_name(checkpoint.step);
  const bool is_first = writers_.world.rank() == 0;
  const bool exists = broadcast_flag(is_first && newest_checkpoint(path_) == target, writers_.world,
                                     "save: is it there");
  if (exists) return false;
  if (is_first) clear_name(target);
  save_ = std::make_unique<ShardedSave>(target, contents_of(checkpoint), writers_);
  target_ = target;
  return true;
}

void RunFolder::publish() {
  const auto save = std::move(save_);  // it is no longer pending, even if commit() throws
  save->commit();
  if (writers_.world.rank() == 0) name_newest(target_);
  if (keep_last_ > 0) check_newest();
}

/// Sets `latest` and the links to this checkpoint of the folder. A disk without links is no error.
void RunFolder::name_newest(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename();
  if (newest_checkpoint(path_) != path_ / name) write_atomic(path_ / kLatestName, name + "\n");
  const std::string problem = link_model_files(path_, path_ / name);
  if (problem.empty() || has_warned_) return;
  has_warned_ = true;
  log_warning(problem, "; for programs other than cleave, give the checkpoint, as ",
              (path_ / name).string());
}

/// If there are old checkpoints to remove: a thread begins to read the new one back.
void RunFolder::check_newest() {
  old_.clear();
  if (writers_.world.rank() == 0) {
    old_ = list_checkpoints(path_);
    const auto kept = std::min(old_.size(), static_cast<size_t>(keep_last_));
    old_.resize(old_.size() - kept);
    std::erase(old_, target_);
    if (kept_step_) std::erase(old_, path_ / checkpoint_name(*kept_step_));
  }
  if (!broadcast_flag(!old_.empty(), writers_.world, "save: is there an old one")) return;
  const auto end_if_left = [this](uint64_t, uint64_t) {
    if (is_left_) throw Error(Code::kUsage, "the run has ended");  // nobody waits for the thread
  };
  const VerifyShare share{
      .index = writers_.world.rank(), .count = writers_.world.size(), .on_bytes = end_if_left};
  check_ = std::async(std::launch::async, [newest = target_, share] {
    require_intact(newest, share, remedy_of(newest));
  });
}

/// Waits until all ranks have read the new checkpoint back, and removes the old ones.
void RunFolder::retire() {
  if (!check_.valid()) return;
  check_.get();
  writers_.world.barrier("save: it was read back");
  for (const fs::path& folder : old_) remove_folder(folder);
}

std::optional<fs::path> newest_checkpoint(const fs::path& run) {
  const fs::path latest = run / kLatestName;
  if (!fs::exists(latest)) return std::nullopt;
  const std::string name = read_latest(latest);
  CLEAVE_CHECK(checkpoint_step(name).has_value(), Code::kFormat, latest.string(), " holds '", name,
               "'; expected the name of a checkpoint folder");
  return run / name;
}

/// Whether `latest`, which names this checkpoint or none, was written after the newest one: by a
/// user who goes back to an older one. After a save it names the newest.
static bool is_chosen(const fs::path& run, const std::optional<fs::path>& named,
                      const fs::path& newest) {
  return named && *named != newest &&
         fs::last_write_time(run / kLatestName) > fs::last_write_time(newest / kManifestName);
}

std::optional<fs::path> checkpoint_to_resume(const fs::path& run) {
  auto named = newest_checkpoint(run);
  const auto checkpoints = list_checkpoints(run);
  if (checkpoints.empty() || (named && checkpoints.back() == *named)) return named;
  const fs::path& last = checkpoints.back();
  return is_chosen(run, named, last) || damage_of(last) ? named : last;
}

/// The checkpoints from which a restarted run may resume, oldest first: up to the one that a user
/// has chosen.
static std::vector<fs::path> list_candidates(const fs::path& run) {
  std::vector<fs::path> checkpoints = list_checkpoints(run);
  if (checkpoints.empty()) return checkpoints;
  const auto named = newest_checkpoint(run);
  if (!is_chosen(run, named, checkpoints.back())) return checkpoints;
  const auto chosen = std::find(checkpoints.begin(), checkpoints.end(), *named);
  if (chosen != checkpoints.end()) checkpoints.erase(chosen + 1, checkpoints.end());
  return checkpoints;
}

std::optional<IntactCheckpoint> newest_intact_checkpoint(const fs::path& run, const Axis& world) {
  std::vector<fs::path> checkpoints;
  if (world.rank() == 0) checkpoints = list_candidates(run);
  IntactCheckpoint whole;
  Code code = Code::kFormat;
  while (true) {
    const int64_t step =
        checkpoints.empty() ? -1 : checkpoint_step(checkpoints.back().filename().string()).value();
    Tensor candidate = at::tensor({step}, at::kLong);
    world.broadcast_(candidate, 0, "restart: newest checkpoint");
    if (candidate.item<int64_t>() < 0) break;
    whole.path = run / checkpoint_name(candidate.item<int64_t>());
    // A checkpoint that another host does not see is not damaged, and must not be set aside.
    require_seen(world, "restart: is the folder shared", whole.path.string(), [&] {
      std::error_code unreadable;
      return fs::exists(whole.path / kManifestName, unreadable) || unreadable;
    });
    const auto mine = damage_of(whole.path, {.index = world.rank(), .count = world.size()});
    const auto damage = broadcast_damage(mine, world);
    if (!damage) return whole;
    if (damage->code() == Code::kIo) code = Code::kIo;
    whole.damage.emplace_back(damage->what());
    if (!checkpoints.empty()) checkpoints.pop_back();
  }
  CLEAVE_CHECK(whole.damage.empty(), code, "no checkpoint is intact: ", whole.damage.front(),
               "; restore one, or start again in another folder");
  return std::nullopt;
}

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  std::vector<fs::path> found;
  if (!fs::is_directory(run)) return found;
  for (const auto& entry : fs::directory_iterator(run)) {
    const bool is_named = checkpoint_step(entry.path().filename().string()).has_value();
    if (is_named && fs::exists(entry.path() / kManifestName)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    return checkpoint_step(a.filename().string()) < checkpoint_step(b.filename().string());
  });
  return found;
}

void verify_checkpoint(const fs::path& folder, const Axis& world) {
  VerifyShare share{.index = world.rank(), .count = world.size()};
  const bool is_shown = world.rank() == 0 && launched_world_size() == 0;
  if (is_shown) share.on_bytes = terminal_progress("verified MiB");
  require_intact(folder, share, remedy_of(folder));
  world.barrier("verify: checkpoint is whole");
}

}  // namespace cleave::inline checkpoint
