#include "cleave/train/trainer.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/base/byte_count.h"
#include "cleave/base/clock.h"
#include "cleave/base/log.h"
#include "cleave/base/resource_limits.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/mesh/cuda.h"
#include "cleave/train/finite_check.h"
#include "cleave/train/replay_forecast.h"
#include "cleave/train/summary.h"

namespace cleave::inline train {
namespace {

/// Address space that a step and a save of a tiny model need in addition to its tensors. With less,
/// libraries that do not report the failed allocation would end the process.
constexpr int64_t kLeastSpace = int64_t{96} << 20;

/// Below this scale, an overflow is not caused by the scaling.
constexpr double kLeastLossScale = 1.0 / 1024;

/// The layout, with buckets for the network if gradients are summed between hosts. Their sums have
/// the same bits with any buckets; but the shards of ZeRO-1, and with them the order of the norm's
/// sum, must not depend on a measurement.
ParallelConfig with_buckets(const TrainSetup& setup, const Axis& dp, const Axis& everyone) {
  ParallelConfig layout = setup.layout;
  const auto environment = read_environment();
  const bool is_over_hosts = environment && environment->local_world_size < everyone.size();
  const bool is_on_cpu = device_of(setup.options.device).is_cpu();
  if (is_over_hosts && is_on_cpu && layout.dp > 1 && layout.sharding == DataSharding::kNone) {
    layout.bucket_bytes = measure_bucket_bytes(dp, everyone);
  }
  return layout;
}

}  // namespace

/// A step's values of the global batch.
struct Trainer::StepSums {
  double loss, comm_s;  // comm_s: of all ranks
  TokenSums texts;
  double reward_margin, reward_accuracy, aux_loss;
};

Trainer::Trainer(const TrainSetup& setup, World& world)
    : setup_(setup),
      world_(world),
      profile_(/*measures_time=*/world.rank() == 0, device_of(setup.options.device).type()),
      mesh_(Mesh::build(
          world, {{"pp", setup.layout.pp}, {"dp", setup.layout.dp}, {"tp", setup.layout.tp}})),
      everyone_(mesh_.flatten(world, {"pp", "dp", "tp"}, "world")),
      rank_(make_model(setup.config), with_buckets(setup, mesh_["dp"], everyone_), mesh_, world,
            setup.optimizer),
      state_(setup),
      batches_(setup, mesh_["dp"], state_.reference),
      stop_(everyone_),
      evaluator_(setup, everyone_, batches_, rank_, stop_),
      checkpoints_(setup, world, mesh_, everyone_, rank_),
      report_(setup, world, mesh_, everyone_) {
  if (setup.task == Task::kDpo) rank_.train_on_preferences(setup.options.dpo_beta);
  // Shown before memory is allocated, since the allocation may fail.
  if (is_first() && setup.planned) {
    log_status("memory  at most ", bytes_text(setup.planned->most_bytes()), " per rank");
  }
  require_device_memory();
  // cuDNN makes a plan for every new length of sequences, which takes longer than the attention.
  if (!setup.data->is_text()) at::globalContext().setSDPUseCuDNN(false);
  checkpoints_.load(state_);
  CLEAVE_CHECK(has_address_space(kLeastSpace), Code::kMemory, "less than ", bytes_text(kLeastSpace),
               " of address space are left for the steps; raise the limit (ulimit -v)");
  checkpoints_.require_space(state_);  // fail before training if the disk is too small
  rank_.refresh_weights();
  MeasuredRun run;
  if (setup.planned) run = {setup.planned->work(), setup.planned->most_bytes()};
  machine_ =
      measure_machine(everyone_, setup.layout.compute_type, device_of(setup.options.device), run);
  profile_.start();  // the measurement is not part of a step
  load_s_ = report_.seconds();
}

/// Refuses a run that does not fit on this rank's GPU.
void Trainer::require_device_memory() const {
  const at::Device device = device_of(setup_.options.device);
  if (device.is_cpu() || !setup_.planned || setup_.options.over_commit) return;
  const int64_t rank = world_.rank();
  const Range ranks = shares_gpus() ? ranks_of_host(setup_.layout) : Range{rank, rank + 1};
  require_gpu_memory(setup_, ranks, DeviceMemory(device.type()).available());
}

int Trainer::run() {
  start();
  while (continues()) {
    train_step(state_.step);
    checkpoints_.poll();
    if (continues() && checkpoints_.is_due(state_)) checkpoints_.save(state_);
  }
  const int signal = stop_.signal();
  checkpoints_.wait();
  if (signal == 0) check_any_update(state_, rank_);
  checkpoints_.finish(state_);
  std::string outcome = "finished";
  if (state_.early_stop.is_over()) outcome = str("stopped early after step ", state_.step);
  if (signal != 0) outcome = str("stopped by signal ", signal, " after step ", state_.step);
  report_.finish(outcome, state_, rank_, profile_,
                 {{"loading", load_s_},
                  {"saving", checkpoints_.save_seconds()},
                  {"evaluation", evaluator_.seconds()}});
  if (signal != 0 && is_first()) log_status("resume with: ", resume_command(setup_.options));
  return signal;
}

/// Prepares the run before its first step.
void Trainer::start() {
  world_.note_step(state_.step);
  if (setup_.resumes) checkpoints_.note_resumable();
  report_.start(state_, rank_.model(), machine_);
  if (state_.step < setup_.num_steps) {
    check_same_batch(batches_.of_step(state_.step), rank_.same_batch());
  }
  if (setup_.task == Task::kDpo && state_.step == 0 && !state_.reference) {
    state_.reference = compute_reference(
        {.setup = setup_, .batches = batches_, .rank = rank_, .stop = stop_, .world = world_});
  }
  if (state_.evaluation_is_pending && setup_.eval_data) make_up_evaluation();
  report_.start_progress(state_);
  stop_.poll("start");
}

/// Runs the evaluation of the weights that the run resumes from, which a signal interrupted. If no
/// step is left, nothing is saved after it: its loss is then in the metrics only, and a later
/// resume finds it there.
void Trainer::make_up_evaluation() {
  StepMetrics m = report_.metrics_of(state_.step);
  Tensor known = at::tensor({m.eval_loss.value_or(NAN)}, at::kDouble);
  everyone_.broadcast_(known, 0, "evaluation that is made up");  // only rank 0 reads the metrics
  const double loss = known.item<double>();
  if (state_.is_over(setup_.num_steps) && !std::isnan(loss)) {
    if (state_.early_stop.is_on()) state_.early_stop.note(state_.step, loss);
    checkpoints_.keep_best(state_);
    return;
  }
  evaluate(m);
  report_.replace_last(m);
  if (is_first() && !state_.evaluation_is_pending) {
    log_status("evaluated after step ", m.step, ", where the run was interrupted: loss ",
               m.eval_loss.value());
  }
}

bool Trainer::continues() const {
  return !state_.is_over(setup_.num_steps) && stop_.signal() == 0;
}

void Trainer::begin_recording(int64_t step) {
  if (step + 1 != setup_.options.record_step) return;
  recording_ =
      std::make_unique<StepRecording>(StepRecording::Subject{.mesh = mesh_,
                                                             .everyone = everyone_,
                                                             .parameters = rank_.parameters(),
                                                             .optimizer = &rank_.optimizer(),
                                                             .sharding = setup_.layout.sharding,
                                                             .counter = profile_.memory()});
}

void Trainer::train_step(int64_t step) {
  begin_recording(step);
  const double start = monotonic_s();
  if (!recording_) profile_.begin_step();  // a recording measures the time itself
  const double comm_before = collective_seconds();
  world_.note_step(step + 1);
  const std::vector<Batch> batches = recorded("data", [&] { return batches_.of_step(step); });
  rank_.optimizer().zero_grad();
  const PassResult pass =
      rank_.train_pass(batches, setup_.options.seed, step, state_.loss_scale.value());
  const double comm_s = collective_seconds() - comm_before;
  if (recording_) recording_->note_comm_end();
  const StepSums sums = sum_over_ranks(pass, batches, comm_s);
  const bool has_labels = pass.num_labels > 0;
  has_labels ? update(step, sums.loss, pass.norm) : warn_of_no_labels(step);
  profile_.end_time();
  state_.step = step + 1;
  state_.evaluation_is_pending = false;  // that was of other weights
  state_.tokens += sums.texts.tokens;
  stop_.poll("step");

  const double seconds = monotonic_s() - start;
  if (recording_) {
    recording_->end();
    profile_.add_time(recording_->seconds());
  }
  profile_.end_memory();
  const double rate = static_cast<double>(sums.texts.tokens) / seconds;
  StepMetrics m{
      .step = state_.step,
      .loss = has_labels ? sums.loss : NAN,
      .grad_norm = has_labels ? pass.norm.value : NAN,
      .lr = setup_.schedule.at(step),
      .tokens = state_.tokens,
      .tokens_per_s = rate,
      .step_ms = seconds * 1e3,
      .comm_ms = sums.comm_s / world_.size() * 1e3,
      .peak_rss_bytes = peak_rss_bytes(),
      .mfu = rate * rank_.model().train_flops_per_token(sums.texts.length()) / machine_.flops};
  if (setup_.task == Task::kDpo) {
    m.reward_margin = sums.reward_margin;
    m.reward_accuracy = sums.reward_accuracy;
  }
  if (pass.aux_loss) m.aux_loss = sums.aux_loss;
  end_step(m);
}

/// Evaluates where it is due, and reports the step.
void Trainer::end_step(StepMetrics m) {
  if (evaluator_.is_due(m.step)) evaluate(m);
  report_.add(m);
  if (!recording_) return;
  Replay replay{.title = str(report_.title(), ", step ", state_.step), .metrics = m};
  if (is_first()) add_forecast(setup_, machine_, world_.size(), replay);
  recording_->write(setup_.options.out, std::move(replay));
  recording_.reset();
  if (!is_first()) return;
  const std::filesystem::path out = setup_.options.out;
  log_status("replay: ", (out / kReplayPageName).string());
}

void Trainer::evaluate(StepMetrics& m) {
  evaluator_.run(m, state_.early_stop);
  state_.evaluation_is_pending = stop_.signal() != 0;
  checkpoints_.keep_best(state_);
}

/// One all-reduce for the loss, the time in collectives, the tokens and more.
Trainer::StepSums Trainer::sum_over_ranks(const PassResult& pass, std::span<const Batch> batches,
                                          double comm_s) const {
  const bool counts = rank_.same_batch().rank() == 0;
  const int64_t rows =
      batches_.own_range(setup_.order.batch_size).size() * setup_.rows_per_sample();
  const TokenSums own = counts ? token_sums(batches, rows) : TokenSums();
  const Tensor sums = everyone_.all_reduce(
      at::tensor({counts ? pass.loss : 0.0, comm_s, static_cast<double>(own.tokens),
                  static_cast<double>(own.lengths), counts ? pass.reward_margin : 0.0,
                  counts ? pass.reward_accuracy : 0.0, counts ? pass.aux_loss.value_or(0) : 0.0},
                 at::kDouble),
      "step");
  const auto sum = [&](int64_t i) { return sums[i].item<double>(); };
  // NaN's sign is unspecified.
  return {
      .loss = std::isnan(sum(0)) ? NAN : sum(0),
      .comm_s = sum(1),
      .texts = {.tokens = static_cast<int64_t>(sum(2)), .lengths = static_cast<int64_t>(sum(3))},
      .reward_margin = sum(4),
      .reward_accuracy = sum(5),
      .aux_loss = sum(6)};
}

/// Seconds in collectives so far.
double Trainer::collective_seconds() const {
  double sum = 0;
  for (const MeshDim& d : mesh_.dims()) sum += mesh_[d.name].seconds();
  return sum + rank_.expert_seconds();
}

/// Such a batch is skipped, as an error would come again in each resumed run.
void Trainer::warn_of_no_labels(int64_t step) {
  if (!is_first() || std::exchange(has_warned_, true)) return;
  log_warning(
      "the batch of step ", step + 1,
      " has no labels (all are -100), so it changed no weight; the same holds for each later ",
      "step without labels. Remove such rows from the data, or raise --batch-size");
}

/// Clips and steps. In fp16 a step whose gradients overflow is skipped.
void Trainer::update(int64_t step, double loss, const GradientNorm& norm) {
  const bool is_finite = std::isfinite(loss) && std::isfinite(norm.value);
  state_.loss_scale.update(is_finite);
  if (!is_finite && state_.loss_scale.is_on() && state_.loss_scale.value() >= kLeastLossScale) {
    if (!is_first()) return;
    log_warning("step ", step + 1,
                " overflows fp16: no weight was changed in it; the loss scale is now ",
                state_.loss_scale.value());
    return;
  }
  // Finish the pending checkpoint from before the failure: the user resumes from it.
  if (!is_finite) checkpoints_.wait();
  check_finite(rank_, everyone_, step, loss, norm);
  const double clip = setup_.options.clip;
  rank_.step(setup_.schedule.at(step), clip > 0 ? clip_factor(norm.value, clip) : 1);
}

}  // namespace cleave::inline train
