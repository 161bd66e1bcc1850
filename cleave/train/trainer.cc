#include "cleave/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "cleave/base/byte_count.h"
#include "cleave/base/clock.h"
#include "cleave/base/hash.h"
#include "cleave/base/log.h"
#include "cleave/base/resource_limits.h"
#include "cleave/base/stop.h"
#include "cleave/checkpoint/adapter.h"
#include "cleave/checkpoint/names.h"
#include "cleave/mesh/cuda.h"
#include "cleave/nn/layer.h"
#include "cleave/planner/machine.h"
#include "cleave/report/page.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/train/fingerprint.h"
#include "cleave/train/summary.h"

namespace cleave::inline train {
namespace {

/// A longer resume command (a shell may have expanded many files) is shortened in the hint that is
/// shown when ranks die.
constexpr size_t kMostHintBytes = 1000;

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

double collective_seconds(const Mesh& mesh) {
  double sum = 0;
  for (const MeshDim& d : mesh.dims()) {
    const auto& group = mesh[d.name].group();
    if (group) sum += group->seconds();
  }
  return sum;
}

}  // namespace

Trainer::Trainer(const TrainSetup& setup, World& world)
    : setup_(setup),
      world_(world),
      mesh_(Mesh::build(
          world, {{"pp", setup.layout.pp}, {"dp", setup.layout.dp}, {"tp", setup.layout.tp}})),
      everyone_(mesh_.flatten(world, {"pp", "dp", "tp"}, "world")),
      rank_(make_model(setup.config), setup.layout, mesh_, world, setup.optimizer),
      loss_scale_(setup.layout.compute_type == at::kHalf),
      early_stop_(setup.options.early_stop),
      folder_(setup.options.out, {.world = everyone_, .tp = mesh_["tp"], .dp = mesh_["dp"]},
              setup.options.keep_last) {
  if (setup.task == Task::kDpo) rank_.train_on_preferences(setup.options.dpo_beta);
  start_s_ = monotonic_s();
  model_name_ = setup.options.model;
  // Shown before memory is allocated, since the allocation may fail.
  if (is_first() && setup.planned) {
    log_status("memory  at most ", bytes_text(static_cast<double>(setup.planned->most_bytes())),
               " per rank");
  }
  load();
  CLEAVE_CHECK(has_address_space(kLeastSpace), Code::kMemory, "less than ",
               bytes_text(static_cast<double>(kLeastSpace)),
               " of address space are left for the steps; raise the limit (ulimit -v)");
  // Fail before training if the disk is too small.
  if (is_first()) folder_.require_space(checkpoint(), saves_ahead(), early_stop_.is_on());
  rank_.refresh_weights();
  machine_ = measure_machine(everyone_, setup.layout.compute_type, device_of(setup.options.device));
  memory_->reset_peak();  // the measurement is not part of a step
  load_s_ = monotonic_s() - start_s_;
}

void Trainer::load() {
  if (setup_.resumes && !setup_.is_verified) verify_checkpoint(setup_.folder->path, everyone_);
  if (!setup_.folder) {
    materialize(rank_.model(), {.seed = setup_.options.seed, .dtype = setup_.layout.leaf_type()});
  } else {
    const at::ScalarType type = setup_.layout.leaf_type();
    LoadResult loaded = setup_.changes_task ? load_for_other_task(rank_.model(), *setup_.folder,
                                                                  type, setup_.options.seed)
                                            : load_model(rank_.model(), *setup_.folder, type);
    if (is_first() && setup_.changes_task) log_status(task_line(rank_.model(), loaded));
    carried_ = std::move(loaded.carried);
    if (setup_.layout.lora) {
      setup_.resumes ? load_adapter(rank_.model(), setup_.folder->adapter, type)
                     : start_magnitudes(rank_.model(), type);
      materialize(rank_.model(), {.seed = setup_.options.seed, .dtype = type});
    }
  }
  move_to(rank_.model(), device_of(setup_.options.device));
  // Allocates the moments now, so that a lack of memory shows before training.
  (void)rank_.optimizer().states();
  if (!setup_.resumes) {
    choose_gemm(setup_.options.gemm, everyone_);
    return;
  }
  load_optimizer(rank_.optimizer(), rank_.model(), setup_.folder->path);
  const Json state = Json::parse_file(setup_.folder->path + "/" + std::string(kStateName));
  model_name_ = state.string_or("model", setup_.options.out);
  CLEAVE_CHECK(state.string_or("base", "") == setup_.base_fingerprint, Code::kFormat,
               setup_.folder->weights_path(), " is not the model that the adapters in ",
               setup_.folder->path,
               " were trained on: its config or its weights differ; give that one with --model");
  // Keep the library of the checkpoint: another one would change the last bits.
  const bool is_free = setup_.options.gemm == "auto";
  choose_gemm(is_free ? state.string_or("gemm", "auto") : setup_.options.gemm, everyone_);
  done_ = state.at("step").as_int(0);
  tokens_ = state.at("tokens").as_int(0);
  if (state.has("loss_scale")) {
    loss_scale_.restore(state.at("loss_scale").as_number(), state.at("good_steps").as_int(0));
  }
  if (early_stop_.is_on() && state.has("best_step")) {
    early_stop_.restore({.best_step = state.at("best_step").as_int(0),
                         .best_loss = state.at("best_loss").as_number(),
                         .num_worse = state.at("worse_evaluations").as_int(0)});
    folder_.keep(early_stop_.state().best_step);
  }
  check_changes(state);
  load_reference();
  saved_ = done_;
  set_aside_newer();
}

/// Renames checkpoints newer than the one that the run resumes from: their steps are repeated.
void Trainer::set_aside_newer() {
  const bool is_damaged = !setup_.damage.empty();
  const auto aside =
      folder_.go_back_to(setup_.folder->path, is_damaged ? ".damaged" : ".superseded");
  if (is_damaged) return;  // start_log() reports the damage of each
  for (const auto& path : aside) {
    log_warning("the run resumes from ", setup_.folder->path, ", which `latest` names; the newer ",
                "checkpoint was renamed to ", path.string());
  }
}

/// Refuses or warns about options that differ from those of the resumed run.
void Trainer::check_changes(const Json& state) const {
  const TrainOptions& o = setup_.options;
  const std::vector<std::string> changes = check_resumed(state, o);
  if (!is_first()) return;
  const bool is_base = setup_.layout.lora.has_value();  // --model may name its new place
  if (!is_base && o.model != TrainOptions{}.model && o.model != model_name_) {
    log_warning("--model ", o.model, " is ignored: the run in ", o.out,
                " resumes with its own model, ", model_name_);
  }
  for (const std::string& change : changes) log_warning(change);
  // The seed and the order also decide which texts share a sequence.
  const bool repacks = !changes.empty() && (o.packing || state.bool_or("packing", false));
  if (!repacks && state.string_or("data", "") != to_hex(setup_.data->fingerprint())) {
    log_warning("the run in ", o.out, " was started on other data or with another --seq-len; ",
                "it resumes at step ", done_, " of this data");
  }
}

void Trainer::start_log() {
  world_.note_step(done_);
  if (!is_first()) return;
  for (const std::string& line : setup_.damage) log_warning(line);
  if (setup_.resumes) note_resumable();
  metrics_ = std::make_unique<MetricsWriter>((folder_.path() / kMetricsName).string(), done_);
  record_ = run_record(setup_, model_name_, rank_.model(), mesh_, world_);
  record_.first_step = done_ + 1;
  write_record(folder_.path().string(), record_);
  for (const std::string& line : run_header(setup_, model_name_, rank_.model(), world_, machine_)) {
    log_status(line);
  }
  if (setup_.resumes) log_status("resumed after step ", done_, " from ", setup_.folder->path);
  if (setup_.resumes && done_ >= setup_.num_steps) {
    log_status(
        setup_.num_steps == 1 ? "the only step is" : str("all ", setup_.num_steps, " steps are"),
        " done; raise --steps or --epochs to train longer");
  } else if (early_stop_.is_over()) {
    log_status("the run was stopped early; raise --early-stop to train longer");
  }
}

void Trainer::start_progress() {
  if (!is_first() || done_ >= setup_.num_steps || early_stop_.is_over()) return;
  progress_ = std::make_unique<Progress>(ProgressOptions{
      .total = setup_.num_steps, .done = done_, .may_be_live = world_.ranks_are_threads()});
}

/// Gives the launcher the command that it prints when ranks die. Called once there is a complete
/// checkpoint: before, nothing can be resumed.
void Trainer::note_resumable() {
  if (!is_first() || is_resumable_) return;
  is_resumable_ = true;
  const std::string command = resume_command(setup_.options);
  world_.note_resume_hint(command.size() < kMostHintBytes ? command
                                                          : "the same command with --resume");
}

/// The range of a global batch that belongs to this data-parallel rank.
Range Trainer::own_range(int64_t num_samples) const {
  const int64_t dp = setup_.layout.dp;
  const int64_t r = mesh_["dp"].rank();
  return {num_samples * r / dp, num_samples * (r + 1) / dp};
}

/// Training data is shuffled, evaluation data is not.
SampleOrder Trainer::order_of(const Dataset& data) const {
  SampleOrder order = setup_.order;
  order.num_samples = data.size();
  const bool trains = &data == setup_.data.get();
  order.shuffle = order.shuffle && trains;
  if (!trains) order.mix.reset();
  return order;
}

/// This rank's samples of a global batch as micro-batches, as many on every rank.
std::vector<Batch> Trainer::micro_batches(const Dataset& data, int64_t step,
                                          int64_t num_samples) const {
  const auto [begin, end] = own_range(num_samples);
  const SampleOrder order = order_of(data);
  const bool trains = &data == setup_.data.get();
  const auto make = trains ? &BatchRules::make : &BatchRules::make_for_eval;
  const Range rows{begin, std::max(end, begin + 1)};
  Batch batch = (setup_.batches.*make)(data, order, step, rows.begin, rows.end);
  if (reference_) {
    const Tensor& known = trains ? reference_->data : reference_->eval_data;
    batch.reference = rows_of_batch(known, order, step, rows);
  }
  if (begin == end) batch.labels = at::full_like(batch.labels, -100);
  const int64_t most = (num_samples + setup_.layout.dp - 1) / setup_.layout.dp;
  const int64_t size = setup_.micro_batch_size;
  return micro_batches_of(batch, size, (most + size - 1) / size);
}

void Trainer::check_same_batch(std::span<const Batch> batches) const {
  const Axis& axis = rank_.same_batch();
  if (axis.size() == 1) return;
  const Tensor mine = at::scalar_tensor(batches.front().hash(), at::kLong).view({1});
  const std::vector<int64_t> one_each(static_cast<size_t>(axis.size()), 1);
  const Tensor all = axis.all_gather(mine, 0, one_each, "hash of the first batch");
  for (int64_t r = 0; r < axis.size(); ++r) {
    CLEAVE_CHECK(
        all[r].item<int64_t>() == all[0].item<int64_t>(), Code::kDesync, "ranks 0 and ", r,
        " of those with the same dp coordinate read different first batches; check that all hosts "
        "have the same data files");
  }
}

int Trainer::run() {
  start_log();
  if (done_ < setup_.num_steps) {
    check_same_batch(micro_batches(*setup_.data, done_, setup_.order.batch_size));
  }
  prepare_reference();
  start_progress();
  while (done_ < setup_.num_steps && stop_signal_ == 0 && !early_stop_.is_over()) {
    train_step(done_);
    const bool is_last = done_ == setup_.num_steps || early_stop_.is_over();
    const int64_t every = setup_.options.save_every;
    const bool is_best = early_stop_.is_on() && early_stop_.state().best_step == done_;
    if (setup_.options.async_save && !folder_.poll_save() && saved_ >= 0) note_resumable();
    if (!is_last && stop_signal_ == 0 && (is_best || (every > 0 && done_ % every == 0))) {
      save(setup_.options.async_save);
    }
  }
  folder_.wait_for_save();
  if (stop_signal_ == 0) check_any_update();
  if (saved_ != done_) save(/*async=*/false);
  if (progress_) progress_->finish();
  if (stop_signal_ == 0) {
    finish(early_stop_.is_over() ? str("stopped early after step ", done_) : "finished");
  } else {
    finish(str("stopped by signal ", stop_signal_, " after step ", done_));
    if (is_first()) log_status("resume with: ", resume_command(setup_.options));
  }
  return stop_signal_;
}

/// Whether to measure the time of operations: in the eight steps after those whose memory is
/// measured.
bool Trainer::watches_time() const {
  constexpr int kSteps = 8;
  return is_first() && !memory_ && num_clocked_ < kSteps;
}

void Trainer::note_time(const OpClock& clock) {
  const auto seconds = clock.seconds();
  for (size_t k = 0; k < seconds.size(); ++k) clocked_s_[k] += seconds[k];
  ++num_clocked_;
}

/// The mean over the measured steps; empty if there are none.
NamesAndSeconds Trainer::step_time() const {
  NamesAndSeconds parts;
  for (size_t k = 0; k < clocked_s_.size() && num_clocked_ > 0; ++k) {
    parts.emplace_back(name(static_cast<TimeKind>(k)), clocked_s_[k] / num_clocked_);
  }
  return parts;
}

void Trainer::train_step(int64_t step) {
  const double start = monotonic_s();
  std::optional<OpClock> clock;
  if (watches_time()) clock.emplace();
  const double comm_before = collective_seconds(mesh_) + rank_.expert_seconds();
  world_.note_step(step + 1);
  const std::vector<Batch> batches = micro_batches(*setup_.data, step, setup_.order.batch_size);
  rank_.optimizer().zero_grad();
  const PassResult pass = rank_.train_pass(batches, setup_.options.seed, step, loss_scale_.value());
  const GradientNorm norm = rank_.gradient_norm();
  // One all-reduce for loss, time in collectives and tokens.
  const bool counts = rank_.same_batch().rank() == 0;
  const double comm_s = collective_seconds(mesh_) + rank_.expert_seconds() - comm_before;
  const int64_t rows = own_range(setup_.order.batch_size).size() * setup_.rows_per_sample();
  const int64_t tokens = rows * batches[0].ids.size(1);
  const Tensor sums = everyone_.all_reduce(
      at::tensor({counts ? pass.loss : 0.0, comm_s, counts ? static_cast<double>(tokens) : 0.0,
                  counts ? pass.reward_margin : 0.0, counts ? pass.reward_accuracy : 0.0,
                  counts ? pass.aux_loss.value_or(0) : 0.0},
                 at::kDouble),
      "step");
  // NaN's sign is unspecified.
  const double reported_loss = sums[0].item<double>();
  const double loss = std::isnan(reported_loss) ? NAN : reported_loss;
  update(step, loss, norm);
  if (clock) note_time(*clock);
  clock.reset();
  done_ = step + 1;
  if (memory_ && ++num_watched_ == 2) {
    most_bytes_ = memory_->peak();
    memory_.reset();
  }
  const auto step_tokens = static_cast<int64_t>(sums[2].item<double>());
  tokens_ += step_tokens;
  is_asked_to_stop("step");

  const double seconds = monotonic_s() - start;
  const double rate = static_cast<double>(step_tokens) / seconds;
  StepMetrics m{
      .step = done_,
      .loss = loss,
      .grad_norm = norm.value,
      .lr = setup_.schedule.at(step),
      .tokens = tokens_,
      .tokens_per_s = rate,
      .step_ms = seconds * 1e3,
      .comm_ms = sums[1].item<double>() / world_.size() * 1e3,
      .peak_rss_bytes = peak_rss_bytes(),
      .mfu = rate * rank_.model().train_flops_per_token(text_length(batches[0])) / machine_.flops};
  if (setup_.task == Task::kDpo) {
    m.reward_margin = sums[3].item<double>();
    m.reward_accuracy = sums[4].item<double>();
  }
  if (pass.aux_loss) m.aux_loss = sums[5].item<double>();
  const int64_t every = setup_.options.eval_every;
  const bool is_eval_step = done_ == setup_.num_steps || (every > 0 && done_ % every == 0);
  if (setup_.eval_data && is_eval_step) note(evaluate(), m);
  note_for_early_stop(m.eval_loss);
  report_step(m);
}

void Trainer::report_step(const StepMetrics& m) {
  if (metrics_) metrics_->append(m);
  if (progress_) {
    progress_->update(m.step, {.loss = m.loss,
                               .reward_margin = m.reward_margin.value_or(NAN),
                               .reward_accuracy = m.reward_accuracy.value_or(NAN),
                               .eval_loss = m.eval_loss.value_or(NAN),
                               .eval_accuracy = m.eval_accuracy.value_or(NAN),
                               .tokens_per_s = m.tokens_per_s});
  }
}

/// Clips and steps. In fp16 a step whose gradients overflow is skipped.
void Trainer::update(int64_t step, double loss, const GradientNorm& norm) {
  const bool is_finite = std::isfinite(loss) && std::isfinite(norm.value);
  loss_scale_.update(is_finite);
  if (!is_finite && loss_scale_.is_on() && loss_scale_.value() >= kLeastLossScale) {
    if (!is_first()) return;
    log_warning("step ", step + 1,
                " overflows fp16: no weight was changed in it; the loss scale is now ",
                loss_scale_.value());
    return;
  }
  // Finish the pending checkpoint from before the failure: the user resumes from it.
  if (!is_finite) folder_.wait_for_save();
  check_finite(step, loss, norm);
  const double clip = setup_.options.clip;
  rank_.step(setup_.schedule.at(step), clip > 0 ? clip_factor(norm.value, clip) : 1);
}

/// Refuses a run whose steps have all overflowed fp16: its weights are those of the start.
void Trainer::check_any_update() {
  if (!loss_scale_.is_on() || done_ == 0 || rank_.optimizer().num_steps() > 0) return;
  throw Error(
      Code::kNumerics,
      str("all ", done_, " steps overflowed fp16, so no weight was changed; the loss scale, ",
          "which halves with each of them, is now ", loss_scale_.value(),
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

// Signals arrive at the ranks at different times. A rank that has seen one shares it with all.
bool Trainer::is_asked_to_stop(const char* site) {
  const Tensor mine = at::scalar_tensor(StopSignal::pending(), at::kLong);
  const auto asked = everyone_.all_reduce(mine, site, ReduceOp::kMax).item<int64_t>();
  if (asked != 0) stop_signal_ = static_cast<int>(asked);
  return asked != 0;
}

void Trainer::note(const EvalSum& sum, StepMetrics& metrics) const {
  metrics.eval_loss = sum.loss();
  const bool has_accuracy = setup_.task == Task::kClassify || setup_.task == Task::kDpo;
  if (has_accuracy) metrics.eval_accuracy = sum.accuracy();
}

/// An evaluation that a signal interrupts does not count.
void Trainer::note_for_early_stop(std::optional<double> loss) {
  if (!early_stop_.is_on() || !loss || stop_signal_ != 0) return;
  Tensor same = at::tensor({*loss}, at::kDouble);
  everyone_.broadcast_(same, 0, "early stop");  // all ranks must decide the same
  early_stop_.note(done_, same.item<double>());
  // A pending save must not remove the best checkpoint so far: the new one is not written yet.
  if (early_stop_.state().best_step == done_) folder_.wait_for_save();
  folder_.keep(early_stop_.state().best_step);
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
    if (is_asked_to_stop("eval")) return {.loss_sum = NAN};
    const int64_t count = std::min(batch_size, setup_.eval_data->size() - begin);
    sum += rank_.eval_pass(micro_batches(*setup_.eval_data, begin / batch_size, count));
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

std::string Trainer::state_json() const {
  nlohmann::ordered_json state;
  state["model"] = model_name_;
  state["step"] = done_;
  state["tokens"] = tokens_;
  save_options(state, setup_.options);
  if (setup_.data->is_text()) state["seq_len"] = setup_.options.seq_len;
  state["data"] = to_hex(setup_.data->fingerprint());
  if (loss_scale_.is_on()) {
    state["loss_scale"] = loss_scale_.value();
    state["good_steps"] = loss_scale_.num_good_steps();
  }
  if (early_stop_.state().best_step >= 0) {
    state["best_step"] = early_stop_.state().best_step;
    state["best_loss"] = early_stop_.state().best_loss;
    state["worse_evaluations"] = early_stop_.state().num_worse;
  }
  if (setup_.layout.lora) {
    state["base"] = setup_.base_fingerprint;
    state["lora_base"] = setup_.layout.lora->has_int8_base ? "int8" : "dtype";
  }
  state["gemm"] = std::string(name(gemm()));
  state["mesh"] = mesh_.describe();
  state["command"] = setup_.options.command;
  return state.dump(2);
}

Checkpoint Trainer::checkpoint() {
  const auto& lora = setup_.layout.lora;
  Checkpoint all{
      .step = done_,
      .model = &rank_.model(),
      .optimizer = &rank_.optimizer(),
      .dtype = setup_.layout.compute_type,
      .carried = carried_,
      .state_json = state_json(),
      .adapter_config = lora ? adapter_config_json(*lora, rank_.model(), setup_.base_model) : "",
      .files = setup_.files};
  if (reference_) all.files.push_back({std::string(kReferenceName), reference_->file});
  return all;
}

/// The number of checkpoints that are still to be written.
int64_t Trainer::saves_ahead() const {
  const int64_t last = saved_ == done_ && done_ >= setup_.num_steps ? 0 : 1;
  if (done_ >= setup_.num_steps) return last;
  const auto times_ahead = [&](int64_t every) {
    return every == 0 ? 0 : (setup_.num_steps - 1) / every - done_ / every;
  };
  // Each evaluation may be the best.
  return times_ahead(setup_.options.save_every) + last +
         (early_stop_.is_on() ? times_ahead(setup_.options.eval_every) : 0);
}

void Trainer::save(bool async) {
  const double start = monotonic_s();
  if (async) {
    folder_.async_save(checkpoint());
  } else {
    folder_.save(checkpoint());
    note_resumable();
  }
  saved_ = done_;
  save_s_ += monotonic_s() - start;
}

void Trainer::finish(const std::string& outcome) {
  const std::vector<RankMemory> memory = rank_memory(setup_, everyone_, mesh_,
                                                     {.optimizer = rank_.optimizer(),
                                                      .parameters = rank_.parameters(),
                                                      .most_bytes = most_bytes()});
  if (!is_first()) return;
  record_.outcome = outcome;
  record_.wall_s = monotonic_s() - start_s_;
  record_.memory = memory;
  record_.step_time = step_time();
  record_.other_time = {{"loading", load_s_}, {"saving", save_s_}, {"evaluation", eval_s_}};
  const std::string run = folder_.path().string();
  write_record(run, record_);
  const std::string path = (folder_.path() / kPageName).string();
  write_report({run}, path);
  const EarlyStop::State& best = early_stop_.state();
  if (best.best_step >= 0) {
    log_status("best: evaluation loss ", best.best_loss, " after step ", best.best_step, ": ",
               (folder_.path() / checkpoint_name(best.best_step)).string());
  }
  log_status("checkpoint: ", (folder_.path() / checkpoint_name(saved_)).string());
  log_status("report: ", path);
}

}  // namespace cleave::inline train
