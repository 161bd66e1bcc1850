#include "cleave/train/run_report.h"

#include <cmath>
#include <filesystem>

#include "cleave/base/clock.h"
#include "cleave/base/log.h"
#include "cleave/checkpoint/names.h"
#include "cleave/report/page.h"
#include "cleave/torch_internals/op_clock.h"
#include "cleave/train/summary.h"

namespace cleave::inline train {

namespace fs = std::filesystem;

namespace {

/// Whether a resumed run has trained no step, because all are done. The record, with its times,
/// memory and settings, then stays that of the last start that trained.
bool keeps_record(const TrainSetup& setup, const RunState& state, int64_t first_step) {
  return setup.resumes && state.is_over(setup.num_steps) && state.step < first_step &&
         fs::exists(fs::path(setup.options.out) / kRecordName);
}

}  // namespace

RunReport::RunReport(const TrainSetup& setup, World& world, const Mesh& mesh, const Axis& everyone)
    : setup_(setup), world_(world), mesh_(mesh), everyone_(everyone), start_s_(monotonic_s()) {}

double RunReport::seconds() const {
  return monotonic_s() - start_s_;
}

void RunReport::start(const RunState& state, Model& model, const Machine& machine) {
  if (!is_first()) return;
  const std::string& run = setup_.options.out;
  for (const std::string& line : setup_.damage) log_warning(line);
  metrics_ = std::make_unique<MetricsWriter>((fs::path(run) / kMetricsName).string(), state.step);
  record_ = run_record(setup_, state.model_name, model, mesh_, world_);
  record_.first_step = state.step + 1;
  if (setup_.planned) {
    const StepTime time = step_time(*setup_.planned, setup_.layout, machine);
    for (int k = 0; k < kNumTimeKinds; ++k) {
      const auto kind = static_cast<TimeKind>(k);
      record_.step_forecast.emplace_back(name(kind), time.of(kind));
    }
  }
  if (!keeps_record(setup_, state, record_.first_step)) write_record(run, record_);
  for (const std::string& line : run_header(setup_, state.model_name, model, world_, machine)) {
    log_status(line);
  }
  if (setup_.resumes) log_status("resumed after step ", state.step, " from ", setup_.folder->path);
  const int64_t recorded = setup_.options.record_step;
  if (recorded > 0 && recorded <= state.step) {
    log_warning("--record-step ", recorded, " was done before step ", state.step + 1,
                ", where the run resumes; no step is recorded");
  }
  if (setup_.resumes && state.step >= setup_.num_steps) {
    log_status(
        setup_.num_steps == 1 ? "the only step is" : str("all ", setup_.num_steps, " steps are"),
        " done; raise --steps or --epochs to train longer");
  } else if (state.early_stop.is_over()) {
    log_status("the run was stopped early; raise --early-stop to train longer");
  }
}

void RunReport::start_progress(const RunState& state) {
  if (!is_first() || state.is_over(setup_.num_steps)) return;
  progress_ = std::make_unique<Progress>(ProgressOptions{
      .total = setup_.num_steps, .done = state.step, .may_be_live = world_.ranks_are_threads()});
}

void RunReport::add(const StepMetrics& m) {
  if (metrics_) metrics_->append(m);
  if (is_first() && setup_.options.log == "tensorboard") {
    const fs::path folder = fs::path(setup_.options.out) / kEventFolderName;
    // Not before the first step: a start that fails leaves no folder.
    if (!events_) events_ = std::make_unique<EventFile>(folder, m.step);
    events_->add(m);
  }
  if (progress_) {
    progress_->update(m.step, {.loss = m.loss,
                               .reward_margin = m.reward_margin.value_or(NAN),
                               .reward_accuracy = m.reward_accuracy.value_or(NAN),
                               .eval_loss = m.eval_loss.value_or(NAN),
                               .eval_accuracy = m.eval_accuracy.value_or(NAN),
                               .tokens_per_s = m.tokens_per_s});
  }
}

StepMetrics RunReport::metrics_of(int64_t step) const {
  if (is_first()) {
    for (const StepMetrics& m :
         read_metrics((fs::path(setup_.options.out) / kMetricsName).string())) {
      if (m.step == step) return m;
    }
  }
  return {.step = step};
}

void RunReport::replace_last(const StepMetrics& metrics) {
  if (!metrics_) return;
  const std::string path = (fs::path(setup_.options.out) / kMetricsName).string();
  metrics_ = std::make_unique<MetricsWriter>(path, metrics.step - 1);
  add(metrics);
}

void RunReport::finish(const std::string& outcome, const RunState& state, RankModel& rank,
                       const StepProfile& profile, const NamesAndSeconds& other_time) {
  if (progress_) progress_->finish();
  const std::vector<RankMemory> memory =
      rank_memory(setup_, everyone_, mesh_, rank, profile.most_bytes());
  if (!is_first()) return;
  // A run that a signal stopped can be resumed up to that step.
  if (state.is_over(setup_.num_steps) && setup_.options.record_step > state.step) {
    log_warning("the run ended after step ", state.step, ", before --record-step ",
                setup_.options.record_step, "; no step is recorded");
  }
  record_.outcome = outcome;
  record_.wall_s = seconds();
  record_.memory = memory;
  record_.step_time = profile.step_time();
  record_.other_time = other_time;
  const fs::path run = setup_.options.out;
  if (!keeps_record(setup_, state, record_.first_step)) write_record(run.string(), record_);
  const std::string path = (run / kPageName).string();
  write_report({run.string()}, path);
  const EarlyStop::State& best = state.early_stop.state();
  if (best.best_step >= 0) {
    log_status("best: evaluation loss ", best.best_loss, " after step ", best.best_step, ": ",
               (run / checkpoint_name(best.best_step)).string());
  }
  log_status("checkpoint: ", (run / checkpoint_name(state.step)).string());
  log_status("report: ", path);
}

}  // namespace cleave::inline train
