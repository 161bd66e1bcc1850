#include "cleave/train/trainer.h"

#include <cmath>

#include <ATen/ATen.h>

#include "cleave/base/byte_count.h"
#include "cleave/base/clock.h"
#include "cleave/base/log.h"
#include "cleave/base/resource_limits.h"
#include "cleave/mesh/cuda.h"
#include "cleave/train/summary.h"

namespace cleave::inline train {
namespace {

/// Address space that a step and a save of a tiny model need in addition to its tensors. With less,
/// libraries that do not report the failed allocation would end the process.
constexpr int64_t kLeastSpace = int64_t{96} << 20;

/// Below this scale, an overflow is not caused by the scaling.
constexpr double kLeastLossScale = 1.0 / 1024;

/// The first weight with a NaN or infinity in this rank's shard; "" if there is none.
std::string first_not_finite(const Parameters& parameters) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (!at::isfinite(parameter->leaf()).all().item<bool>()) return parameter->name();
  }
  return "";
}

}  // namespace

/// A step's values of the global batch.
struct Trainer::StepSums {
  double loss, comm_s;  // comm_s: of all ranks
  int64_t tokens;
  double reward_margin, reward_accuracy, aux_loss;
};

Trainer::Trainer(const TrainSetup& setup, World& world)
    : setup_(setup),
      world_(world),
      profile_(/*measures_time=*/world.rank() == 0),
      mesh_(Mesh::build(
          world, {{"pp", setup.layout.pp}, {"dp", setup.layout.dp}, {"tp", setup.layout.tp}})),
      everyone_(mesh_.flatten(world, {"pp", "dp", "tp"}, "world")),
      rank_(make_model(setup.config), setup.layout, mesh_, world, setup.optimizer),
      state_(setup),
      batches_(setup, mesh_["dp"], state_.reference),
      stop_(everyone_),
      checkpoints_(setup, world, mesh_, everyone_, rank_),
      report_(setup, world, mesh_, everyone_) {
  if (setup.task == Task::kDpo) rank_.train_on_preferences(setup.options.dpo_beta);
  // Shown before memory is allocated, since the allocation may fail.
  if (is_first() && setup.planned) {
    log_status("memory  at most ", bytes_text(static_cast<double>(setup.planned->most_bytes())),
               " per rank");
  }
  // cuDNN makes a plan for every new length of sequences, which takes longer than the attention.
  if (!setup.data->is_text()) at::globalContext().setSDPUseCuDNN(false);
  checkpoints_.load(state_);
  CLEAVE_CHECK(has_address_space(kLeastSpace), Code::kMemory, "less than ",
               bytes_text(static_cast<double>(kLeastSpace)),
               " of address space are left for the steps; raise the limit (ulimit -v)");
  checkpoints_.require_space(state_);  // fail before training if the disk is too small
  rank_.refresh_weights();
  machine_ = measure_machine(everyone_, setup.layout.compute_type, device_of(setup.options.device));
  profile_.start();  // the measurement is not part of a step
  load_s_ = report_.seconds();
}

int Trainer::run() {
  start();
  while (!is_over() && stop_.signal() == 0) {
    train_step(state_.step);
    checkpoints_.poll();
    if (!is_over() && stop_.signal() == 0 && checkpoints_.is_due(state_)) checkpoints_.save(state_);
  }
  const int signal = stop_.signal();
  checkpoints_.wait();
  if (signal == 0) check_any_update();
  checkpoints_.finish(state_);
  std::string outcome = "finished";
  if (state_.early_stop.is_over()) outcome = str("stopped early after step ", state_.step);
  if (signal != 0) outcome = str("stopped by signal ", signal, " after step ", state_.step);
  report_.finish(
      outcome, state_, rank_, profile_,
      {{"loading", load_s_}, {"saving", checkpoints_.save_seconds()}, {"evaluation", eval_s_}});
  if (signal != 0 && is_first()) log_status("resume with: ", resume_command(setup_.options));
  return signal;
}

/// What comes before the first step.
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
  report_.start_progress(state_);
}

bool Trainer::is_over() const {
  return state_.step >= setup_.num_steps || state_.early_stop.is_over();
}

void Trainer::begin_recording(int64_t step) {
  if (step + 1 != setup_.options.record_step) return;
  recording_ = std::make_unique<StepRecording>(
      StepRecording::Subject{rank_, mesh_, everyone_, profile_.memory(), setup_.layout.sharding});
}

void Trainer::train_step(int64_t step) {
  begin_recording(step);
  const double start = monotonic_s();
  profile_.begin_step();
  const double comm_before = collective_seconds();
  world_.note_step(step + 1);
  const std::vector<Batch> batches = recorded("data", [&] { return batches_.of_step(step); });
  rank_.optimizer().zero_grad();
  const PassResult pass =
      rank_.train_pass(batches, setup_.options.seed, step, state_.loss_scale.value());
  const GradientNorm norm = rank_.gradient_norm();
  const double comm_s = collective_seconds() - comm_before;
  if (recording_) recording_->note_comm_end();
  const StepSums sums = sum_over_ranks(pass, batches[0], comm_s);
  update(step, sums.loss, norm);
  profile_.end_time();
  state_.step = step + 1;
  state_.tokens += sums.tokens;
  stop_.poll("step");

  const double seconds = monotonic_s() - start;
  if (recording_) recording_->end();
  profile_.end_memory();
  const double rate = static_cast<double>(sums.tokens) / seconds;
  StepMetrics m{
      .step = state_.step,
      .loss = sums.loss,
      .grad_norm = norm.value,
      .lr = setup_.schedule.at(step),
      .tokens = state_.tokens,
      .tokens_per_s = rate,
      .step_ms = seconds * 1e3,
      .comm_ms = sums.comm_s / world_.size() * 1e3,
      .peak_rss_bytes = peak_rss_bytes(),
      .mfu = rate * rank_.model().train_flops_per_token(text_length(batches[0])) / machine_.flops};
  if (setup_.task == Task::kDpo) {
    m.reward_margin = sums.reward_margin;
    m.reward_accuracy = sums.reward_accuracy;
  }
  if (pass.aux_loss) m.aux_loss = sums.aux_loss;
  end_step(m);
}

/// Evaluates where it is due, and reports the step.
void Trainer::end_step(StepMetrics m) {
  const int64_t every = setup_.options.eval_every;
  const bool is_eval_step =
      state_.step == setup_.num_steps || (every > 0 && state_.step % every == 0);
  if (setup_.eval_data && is_eval_step) note(evaluate(), m);
  note_for_early_stop(m.eval_loss);
  report_.add(m);
  if (!recording_) return;
  recording_->write(setup_, machine_, m, str(report_.title(), ", step ", state_.step));
  recording_.reset();
}

/// One all-reduce for loss, time in collectives and tokens. `batch`: one of the step.
Trainer::StepSums Trainer::sum_over_ranks(const PassResult& pass, const Batch& batch,
                                          double comm_s) const {
  const bool counts = rank_.same_batch().rank() == 0;
  const int64_t rows =
      batches_.own_range(setup_.order.batch_size).size() * setup_.rows_per_sample();
  const int64_t tokens = rows * batch.ids.size(1);
  const Tensor sums = everyone_.all_reduce(
      at::tensor({counts ? pass.loss : 0.0, comm_s, counts ? static_cast<double>(tokens) : 0.0,
                  counts ? pass.reward_margin : 0.0, counts ? pass.reward_accuracy : 0.0,
                  counts ? pass.aux_loss.value_or(0) : 0.0},
                 at::kDouble),
      "step");
  const auto sum = [&](int64_t i) { return sums[i].item<double>(); };
  // NaN's sign is unspecified.
  return {.loss = std::isnan(sum(0)) ? NAN : sum(0),
          .comm_s = sum(1),
          .tokens = static_cast<int64_t>(sum(2)),
          .reward_margin = sum(3),
          .reward_accuracy = sum(4),
          .aux_loss = sum(5)};
}

/// Seconds in collectives so far.
double Trainer::collective_seconds() const {
  double sum = 0;
  for (const MeshDim& d : mesh_.dims()) sum += mesh_[d.name].seconds();
  return sum + rank_.expert_seconds();
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
  check_finite(step, loss, norm);
  const double clip = setup_.options.clip;
  const RecordedScope recorded(EventKind::kOptimizer, "optimizer step");
  rank_.step(setup_.schedule.at(step), clip > 0 ? clip_factor(norm.value, clip) : 1);
}

/// Refuses a run whose steps have all overflowed fp16: its weights are those of the start.
void Trainer::check_any_update() {
  const LossScale& scale = state_.loss_scale;
  if (!scale.is_on() || state_.step == 0 || rank_.optimizer().num_steps() > 0) return;
  throw Error(
      Code::kNumerics,
      str("all ", state_.step, " steps overflowed fp16, so no weight was changed; the loss scale, ",
          "which halves with each of them, is now ", scale.value(),
          ". Give more --steps, or --dtype bf16"));
}

void Trainer::check_finite(int64_t step, double loss, const GradientNorm& norm) const {
  if (std::isfinite(loss) && std::isfinite(norm.value)) return;
  if (!std::isfinite(loss)) {
    const std::string weight = first_not_finite(rank_.parameters());
    CLEAVE_CHECK(weight.empty(), Code::kNumerics, "the weight ", weight, " is not finite on rank ",
                 world_.rank(), ", and the loss is ", loss, " in step ", step + 1,
                 "; resume from an earlier checkpoint with a smaller --lr");
    everyone_.barrier("weight check");
    throw Error(Code::kNumerics,
                str("the loss is ", loss, " in step ", step + 1,
                    "; no weight was changed in it. Try a smaller --lr, or --clip"));
  }
  // The rank that holds the tensor reports it; the others wait for the abort.
  if (norm.not_finite.empty()) everyone_.barrier("gradient check");
  throw Error(Code::kNumerics,
              str("the gradient of ", norm.not_finite, " is not finite in step ", step + 1,
                  " on rank ", world_.rank(), "; no weight was changed in it. Try a smaller --lr"));
}

void Trainer::note(const EvalSum& sum, StepMetrics& metrics) const {
  metrics.eval_loss = sum.loss();
  const bool has_accuracy = setup_.task == Task::kClassify || setup_.task == Task::kDpo;
  if (has_accuracy) metrics.eval_accuracy = sum.accuracy();
}

/// An evaluation that a signal interrupts does not count.
void Trainer::note_for_early_stop(std::optional<double> loss) {
  if (!state_.early_stop.is_on() || !loss || stop_.signal() != 0) return;
  Tensor same = at::tensor({*loss}, at::kDouble);
  everyone_.broadcast_(same, 0, "early stop");  // all ranks must decide the same
  state_.early_stop.note(state_.step, same.item<double>());
  checkpoints_.keep_best(state_);
}

/// Exchanges weights and averages, if averages are kept.
void Trainer::swap_ema() {
  if (!rank_.optimizer().has_ema()) return;
  rank_.optimizer().swap_ema();
  rank_.refresh_weights();
}

EvalSum Trainer::evaluate() {
  const double start = monotonic_s();
  swap_ema();
  const EvalSum sum = evaluate_weights();
  swap_ema();
  eval_s_ += monotonic_s() - start;
  return sum;
}

EvalSum Trainer::evaluate_weights() {
  EvalSum sum;
  const int64_t batch_size = setup_.order.batch_size;
  for (int64_t begin = 0; begin < setup_.eval_data->size(); begin += batch_size) {
    if (stop_.poll("eval")) return {.loss_sum = NAN};
    const int64_t count = std::min(batch_size, setup_.eval_data->size() - begin);
    sum += rank_.eval_pass(batches_.micro_batches(*setup_.eval_data, begin / batch_size, count));
  }
  const Tensor sums = mesh_["dp"].all_reduce(
      at::tensor(
          {sum.loss_sum, static_cast<double>(sum.num_labels), static_cast<double>(sum.num_right)},
          at::kDouble),
      "eval loss");
  return {.loss_sum = sums[0].item<double>(),
          .num_labels = static_cast<int64_t>(sums[1].item<double>()),
          .num_right = static_cast<int64_t>(sums[2].item<double>())};
}

}  // namespace cleave::inline train
