#include "cleave/parallel/step_recording.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/base/error.h"
#include "cleave/file/atomic_write.h"
#include "cleave/mesh/place.h"
#include "cleave/report/record.h"

namespace cleave::inline parallel {
namespace {

namespace fs = std::filesystem;

int64_t all_bytes(const KindBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

void check_subject(const StepRecording::Subject& subject) {
  CLEAVE_CHECK(StepRecorder::active() == nullptr, Code::kUsage,
               "a second recording begins on a thread that records a step; end() the first one");
  CLEAVE_CHECK(subject.everyone.size() == subject.mesh.size(), Code::kUsage,
               "a recording needs an axis of all ranks; the mesh ", subject.mesh.describe(),
               " has ", subject.mesh.size(), " and axis ", subject.everyone.name(), " has ",
               subject.everyone.size(), "; make one with Mesh::flatten()");
  for (const auto& p : subject.parameters) {
    CLEAVE_CHECK(!p->leaf().defined() || p->leaf().is_cpu(), Code::kUsage,
                 "a recording supports ranks on the CPU; ", p->name(), " is on ",
                 p->leaf().device().str());
  }
}

/// Bytes of the parameters and their optimizer, and the rest of the tensors that were made since
/// now.
StepRecorder::Memory memory_of(const StepRecording::Subject& subject, const CpuMemory& counter) {
  const auto held = [&subject] {
    return held_bytes(subject.parameters, subject.optimizer, subject.sharding);
  };
  const int64_t before = all_bytes(held()) - counter.live();
  return [held, &counter, before] {
    KindBytes bytes = held();
    bytes[kRestBytes] = std::max<int64_t>(0, before + counter.live() - all_bytes(bytes));
    return bytes;
  };
}

/// The recordings of all ranks, on rank 0; empty on others. The texts are not tensors, which would
/// count as memory of the run.
std::vector<RankRecording> gathered_on_first(const Axis& everyone, RankRecording own) {
  std::vector<RankRecording> all;
  if (everyone.size() == 1) {
    all.push_back(std::move(own));
    return all;
  }
  const Call call{.site = "recording of a step", .shape = {}};
  const std::string mine = everyone.rank() == 0 ? "" : json_of(own);
  const auto size = static_cast<int64_t>(mine.size());
  const std::vector<int64_t> one_each(static_cast<size_t>(everyone.size()), 1);
  std::vector<int64_t> sizes(one_each.size());
  Group& group = *everyone.group();
  group.all_gather(&size, sizes.data(), 1, one_each, DType::kI64, call);
  if (everyone.rank() != 0) {
    group.send(mine.data(), size, DType::kU8, 0, call);
    return {};
  }
  all.push_back(std::move(own));
  for (int r = 1; r < everyone.size(); ++r) {
    const int64_t count = sizes[static_cast<size_t>(r)];
    std::string text(static_cast<size_t>(count), ' ');
    group.recv(text.data(), count, DType::kU8, r, call);
    all.push_back(recording_of(text));
  }
  return all;
}

void write_files(const fs::path& folder, const Replay& replay) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  CLEAVE_CHECK(!problem, Code::kIo, folder.string(), ": ", problem.message());
  write_atomic(folder / kReplayTraceName, std::string_view(chrome_trace(replay)));
  write_atomic(folder / kReplayPageName, std::string_view(replay_page(replay)));
}

}  // namespace

StepRecording::StepRecording(Subject subject) : subject_(std::move(subject)) {
  check_subject(subject_);
  subject_.everyone.barrier("begin of a recorded step");
  aligned_s_ = monotonic_s();
  if (!subject_.memory) {
    const CpuMemory* counter = subject_.counter;
    subject_.memory = memory_of(subject_, counter ? *counter : own_counter_.emplace());
  }
  recorder_.emplace(subject_.memory);
  backward_.emplace();
  clock_.emplace();
}

void StepRecording::end() {
  seconds_ = clock_->seconds();
  clock_.reset();
  backward_.reset();
  add_weights();
  recording_ = recorder_->finish(aligned_s_);
  recorder_.reset();
  own_counter_.reset();
  recording_->rank = subject_.everyone.rank();
  recording_->host = host_name();
  recording_->aligned_s = aligned_s_;
  recording_->products_s = seconds_.at(static_cast<size_t>(TimeKind::kProducts));
  recording_->attention_s = seconds_.at(static_cast<size_t>(TimeKind::kAttention));
}

void StepRecording::add_weights() {
  for (const auto& p : subject_.parameters) {
    if (!p->is_here()) continue;
    const std::vector<int64_t> local = p->local_shape();
    const Range flat = p->flat_range();
    WeightPart part{
        .name = recorder_->name_index(p->name()),
        .shape = p->shape(),
        .dim = p->is_split() ? p->split_dim() : -1,
        .numel = std::accumulate(local.begin(), local.end(), int64_t{1}, std::multiplies<>()),
        .flat_begin = flat.begin,
        .flat_end = flat.end,
        .is_gathered = subject_.sharding == DataSharding::kFsdp && p->is_flat()};
    for (const Range& range : p->ranges()) part.ranges.push_back({range.begin, range.end});
    recorder_->add_weight(std::move(part));
  }
}

void StepRecording::write(const fs::path& folder, Replay replay) {
  if (recorder_) end();
  CLEAVE_CHECK(recording_, Code::kUsage, "write() of a recording was called twice");
  replay.num_cores = static_cast<int>(std::thread::hardware_concurrency());
  replay.ranks = gathered_on_first(subject_.everyone, std::move(*recording_));
  recording_.reset();
  if (replay.ranks.empty()) return;
  align(replay.ranks);
  set_waiting(replay.ranks);
  replay.places.clear();
  double longest_s = 0;
  for (const RankRecording& r : replay.ranks) {
    replay.places.push_back(place_text(subject_.mesh, r.rank));
    longest_s = std::max(longest_s, r.step_s);
  }
  if (std::isnan(replay.metrics.step_ms)) replay.metrics.step_ms = longest_s * 1e3;
  write_files(folder, replay);
}

}  // namespace cleave::inline parallel
