#include "cleave/checkpoint/run_folder.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/checkpoint/names.h"
#include "cleave/file/atomic_write.h"
#include "cleave/format/manifest.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxLatestBytes = 4096;

void name_latest(const fs::path& run, const fs::path& checkpoint) {
  write_atomic(run / kLatestName, checkpoint.filename().string() + "\n");
}

/// A writer that died between committing a checkpoint and naming it: name it now.
void repair_latest(const fs::path& run) {
  const auto checkpoints = list_checkpoints(run);
  if (checkpoints.empty()) return;
  const auto named = newest_checkpoint(run);
  const auto at =
      named ? std::find(checkpoints.begin(), checkpoints.end(), *named) : checkpoints.end();
  if (at == checkpoints.end() - 1) return;
  if (find_damage(checkpoints.back()).empty()) name_latest(run, checkpoints.back());
}

/// What the first rank knows, on all.
bool agree(bool mine, const Axis& world, std::string_view site) {
  Tensor flag = at::tensor({mine ? 1 : 0}, at::kLong);
  world.broadcast_(flag, 0, site);
  return flag.item<int64_t>() != 0;
}

}  // namespace

RunFolder::RunFolder(fs::path path, Writers writers, int64_t keep_last)
    : path_(std::move(path)), writers_(std::move(writers)), keep_last_(keep_last) {
  CLEAVE_CHECK(keep_last_ >= 0, Code::kUsage, "keep-last is ", keep_last_,
               "; expected how many checkpoints to keep, or 0 for all");
  if (writers_.world.rank() == 0) {
    std::error_code code;
    fs::create_directories(path_, code);
    if (code) throw_io(path_.string(), "mkdir", code.value());
    lock_ = std::make_unique<FileLock>(path_);
    remove_leftovers(path_);
    repair_latest(path_);
  }
  writers_.world.barrier("run folder opened");
}

void RunFolder::go_back_to(const fs::path& checkpoint) {
  if (writers_.world.rank() == 0) {
    name_latest(path_, checkpoint);
    for (const fs::path& newer : list_checkpoints(path_)) {
      if (checkpoint_step(newer.filename().string()) <=
          checkpoint_step(checkpoint.filename().string())) {
        continue;
      }
      fs::path aside = newer.string() + ".damaged";
      for (int n = 2; fs::exists(aside); ++n) aside = str(newer.string(), ".damaged", n);
      rename_durably(newer, aside);
    }
  }
  writers_.world.barrier("run folder went back");
}

fs::path RunFolder::save(const Checkpoint& checkpoint) {
  if (begin(checkpoint)) {
    save_->write();
    publish();
  }
  return path_ / checkpoint_name(checkpoint.step);
}

void RunFolder::save_behind(const Checkpoint& checkpoint) {
  if (begin(checkpoint)) save_->write_behind();
}

bool RunFolder::settle(Settle when) {
  if (save_ == nullptr) return false;
  if (when == Settle::kIfWritten) {
    const Tensor mine = at::tensor({save_->is_written() ? 0 : 1}, at::kLong);
    const Tensor waits = writers_.world.all_reduce(mine, "save: is it written", ReduceOp::kMax);
    if (waits.item<int64_t>() != 0) return true;
  }
  publish();
  return false;
}

/// Makes the new checkpoint's files; false: it is there already.
bool RunFolder::begin(const Checkpoint& checkpoint) {
  settle(Settle::kWait);
  const fs::path target = path_ / checkpoint_name(checkpoint.step);
  const bool is_first = writers_.world.rank() == 0;
  const bool is_there =
      agree(is_first && newest_checkpoint(path_) == target, writers_.world, "save: is it there");
  if (is_there) return false;
  save_ = std::make_unique<ShardedSave>(target, contents_of(checkpoint), writers_);
  target_ = target;
  return true;
}

void RunFolder::publish() {
  const auto save = std::move(save_);  // whatever happens, it is not on its way any more
  save->commit();
  if (writers_.world.rank() == 0) name_latest(path_, target_);
  if (keep_last_ > 0) retire(target_);
}

void RunFolder::retire(const fs::path& newest) {
  const bool is_first = writers_.world.rank() == 0;
  std::vector<fs::path> old;
  if (is_first) {
    old = list_checkpoints(path_);
    const auto kept = std::min(old.size(), static_cast<size_t>(keep_last_));
    old.resize(old.size() - kept);
    std::erase(old, newest);
  }
  if (!agree(!old.empty(), writers_.world, "save: is there an old one")) return;
  verify_checkpoint(newest, writers_.world);
  for (const fs::path& folder : old) remove_folder(folder);
}

std::optional<fs::path> newest_checkpoint(const fs::path& run) {
  const fs::path latest = run / kLatestName;
  if (!fs::exists(latest)) return std::nullopt;
  std::string name = read_file(latest, kMaxLatestBytes);
  if (name.ends_with('\n')) name.pop_back();
  CLEAVE_CHECK(checkpoint_step(name).has_value(), Code::kFormat, latest.string(), " holds '", name,
               "'; expected the name of a checkpoint folder");
  return run / name;
}

std::optional<WholeCheckpoint> newest_whole_checkpoint(const fs::path& run) {
  std::vector<fs::path> checkpoints = list_checkpoints(run);
  WholeCheckpoint whole;
  for (; !checkpoints.empty(); checkpoints.pop_back()) {
    whole.path = checkpoints.back();
    std::vector<std::string> problems;
    try {
      problems = find_damage(whole.path);
    } catch (const Error& error) {
      if (error.code() != Code::kFormat) throw;
      problems.emplace_back(error.what());
    }
    if (problems.empty()) return whole;
    whole.damage.push_back(str(whole.path.string(), " is damaged: ", problems.front()));
  }
  CLEAVE_CHECK(whole.damage.empty(), Code::kFormat,
               "no checkpoint is whole: ", whole.damage.front(),
               "; restore one, or begin anew in another folder");
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
  require_intact(folder, {.index = world.rank(), .count = world.size()});
  world.barrier("verify: checkpoint is whole");
}

}  // namespace cleave
