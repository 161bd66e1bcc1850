#include "cleave/train/step_recording.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <thread>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/base/log.h"
#include "cleave/file/atomic_write.h"
#include "cleave/report/replay.h"
#include "cleave/train/held_memory.h"
#include "cleave/train/summary.h"

namespace cleave::inline train {
namespace {

int64_t sum_of(const KindBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

/// What held_bytes() returns, and the rest of the tensors that were made since now.
StepRecorder::Memory memory_of(RankModel& rank, DataSharding sharding, const CpuMemory& counter) {
  const int64_t before = sum_of(held_bytes(rank, sharding)) - counter.live();
  return [&rank, sharding, &counter, before] {
    KindBytes bytes = held_bytes(rank, sharding);
    bytes[kRestBytes] = std::max<int64_t>(0, before + counter.live() - sum_of(bytes));
    return bytes;
  };
}

/// The recordings of all ranks, on rank 0; empty on others. The texts are not tensors, which would
/// count as memory of the run.
std::vector<RankRecording> gathered(const Axis& everyone, RankRecording own) {
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

/// The forecast of a rank of the world.
const RankForecast& forecast_of(const Forecast& planned, const ParallelConfig& layout,
                                size_t rank) {
  const auto dp = static_cast<size_t>(layout.dp), tp = static_cast<size_t>(layout.tp);
  const auto of_ep = static_cast<int>(rank / tp % static_cast<size_t>(layout.ep));
  const bool has_fewer = !planned.with_fewer_experts.empty() && of_ep >= planned.first_with_fewer;
  return (has_fewer ? planned.with_fewer_experts : planned.ranks).at(rank / (dp * tp));
}

void add_forecast(const TrainSetup& setup, const Machine& machine, Replay& replay) {
  if (!setup.planned) return;
  const StepTime time = step_time(*setup.planned, setup.layout, machine);
  replay.forecast_comm_s = time.of(TimeKind::kCollectives);
  replay.forecast_compute_s = time.total() - replay.forecast_comm_s;
  for (size_t r = 0; r < replay.ranks.size(); ++r) {
    const RankForecast& f = forecast_of(*setup.planned, setup.layout, r);
    RankForecastNumbers numbers{.memory = f.memory.total()};
    for (const auto& [axis, calls] : f.calls) {
      if (!calls.empty()) numbers.sent.emplace_back(axis, sum_of(calls).bytes);
    }
    replay.forecast.push_back(std::move(numbers));
  }
}

}  // namespace

StepRecording::StepRecording(const Subject& subject) : subject_(subject) {
  if (subject_.memory == nullptr) subject_.memory = &own_memory_.emplace();
  subject_.everyone.barrier("begin of a recorded step");
  aligned_s_ = monotonic_s();
  recorder_.emplace(memory_of(subject_.rank, subject_.sharding, *subject_.memory));
  backward_.emplace();
}

void StepRecording::end() {
  backward_.reset();
  add_weights();
  recording_ = recorder_->finish(aligned_s_);
  recorder_.reset();
  own_memory_.reset();
  recording_.rank = subject_.everyone.rank();
  recording_.host = host_name();
  recording_.aligned_s = aligned_s_;
}

void StepRecording::add_weights() {
  for (const auto& p : subject_.rank.parameters()) {
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

void StepRecording::write(const TrainSetup& setup, const Machine& machine,
                          const StepMetrics& metrics, const std::string& title) {
  Replay replay{.title = title,
                .metrics = metrics,
                .num_cores = static_cast<int>(std::thread::hardware_concurrency()),
                .ranks = gathered(subject_.everyone, std::move(recording_))};
  if (replay.ranks.empty()) return;
  align(replay.ranks);
  set_waiting(replay.ranks);
  for (const RankRecording& r : replay.ranks) {
    replay.places.push_back(place_text(subject_.mesh, r.rank));
  }
  add_forecast(setup, machine, replay);
  const std::filesystem::path out = setup.options.out;
  write_atomic(out / kReplayTraceName, std::string_view(chrome_trace(replay)));
  write_atomic(out / kReplayPageName, std::string_view(replay_page(replay)));
  log_status("replay: ", (out / kReplayPageName).string());
}

}  // namespace cleave::inline train
