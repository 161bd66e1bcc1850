#include "cleave/train/checkpointer.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "cleave/base/byte_progress.h"
#include "cleave/base/clock.h"
#include "cleave/base/hash.h"
#include "cleave/base/log.h"
#include "cleave/checkpoint/adapter_config.h"
#include "cleave/checkpoint/names.h"
#include "cleave/file/model_path.h"
#include "cleave/mesh/cuda.h"
#include "cleave/nn/initial_value.h"
#include "cleave/planner/machine.h"
#include "cleave/train/summary.h"

namespace cleave::inline train {
namespace {

/// A longer resume command (a shell may have expanded many files) is shortened in the hint that is
/// shown when ranks die.
constexpr size_t kMostHintBytes = 1000;

}  // namespace

Checkpointer::Checkpointer(const TrainSetup& setup, World& world, const Mesh& mesh,
                           const Axis& everyone, RankModel& rank)
    : setup_(setup),
      world_(world),
      mesh_(mesh),
      everyone_(everyone),
      rank_(rank),
      folder_(setup.options.out, {.world = everyone, .tp = mesh["tp"], .dp = mesh["dp"]},
              setup.options.keep_last) {}

void Checkpointer::load_weights() {
  if (setup_.resumes && !setup_.is_verified) verify_checkpoint(setup_.folder->path, everyone_);
  const at::ScalarType type = setup_.layout.leaf_type();
  if (setup_.folder) {
    LoadHooks hooks;
    if (is_first() && world_.ranks_are_threads()) hooks.on_bytes = terminal_progress("loaded MiB");
    LoadResult loaded = read_from(setup_.folder->folders(), [&] {
      return setup_.changes_task
                 ? load_for_other_task(rank_.model(), *setup_.folder, type, setup_.options.seed)
                 : load_model(rank_.model(), *setup_.folder, type, hooks);
    });
    if (is_first() && setup_.changes_task) log_status(task_line(rank_.model(), loaded));
    carried_ = std::move(loaded.carried);
    if (setup_.layout.lora) {
      setup_.resumes ? load_adapter(rank_.model(), setup_.folder->adapter, type)
                     : start_magnitudes(rank_.model(), type);
    }
  }
  // Initializes the weights that no file has: all of them, or an adapter's.
  materialize_on(device_of(setup_.options.device), rank_.model(),
                 {.seed = setup_.options.seed, .dtype = type});
  // Allocates the moments now, so that a lack of memory shows before training.
  (void)rank_.optimizer().states();
}

/// Refuses to resume if another run has saved between the choice of the checkpoint and the lock of
/// the folder: its newer checkpoint would be set aside. A restart looks for damage, not at
/// `latest`.
void Checkpointer::require_newest() const {
  if (!is_first() || !setup_.resumes || setup_.is_verified) return;
  const auto newest = newest_checkpoint(folder_.path());
  const auto chosen = std::filesystem::path(setup_.folder->path).filename();
  CLEAVE_CHECK(!newest || newest->filename() == chosen, Code::kIo, setup_.options.out,
               ": another run saved ", newest->filename().string(), " after this run had chosen ",
               chosen.string(), " to resume from; start this run again");
}

void Checkpointer::load(RunState& state) {
  require_newest();
  load_weights();
  if (!setup_.resumes) {
    choose_gemm(setup_.options.gemm, everyone_);
    return;
  }
  load_optimizer(rank_.optimizer(), rank_.model(), setup_.folder->path);
  const Json saved = Json::parse_file(setup_.folder->path + "/" + std::string(kStateName));
  // Use the library that the checkpoint was written with: another one would change the last bits.
  const bool is_free = setup_.options.gemm == "auto";
  choose_gemm(is_free ? saved.string_or("gemm", "auto") : setup_.options.gemm, everyone_);
  state.restore(saved, setup_.options.out);
  forget_best_of_other_data(saved, state);
  keep_best(state);
  check_changes(saved, state);
  state.reference = load_reference(setup_, state.step);
  saved_ = state.step;
  set_aside_newer();
}

/// The losses of other evaluation data cannot be compared with the best one so far.
void Checkpointer::forget_best_of_other_data(const Json& saved, RunState& state) const {
  const int64_t best = state.early_stop.state().best_step;
  if (!setup_.eval_data || !saved.has("eval_data") ||
      saved.at("eval_data").as_string() == to_hex(setup_.eval_data->fingerprint())) {
    return;
  }
  state.early_stop.restore({});
  if (!is_first() || best < 0) return;
  log_warning("the evaluation data changed since the best evaluation, after step ", best,
              "; only evaluations from now on are compared with each other");
}

/// Renames checkpoints newer than the one that the run resumes from: their steps are repeated.
void Checkpointer::set_aside_newer() {
  const bool is_damaged = !setup_.damage.empty();
  const auto aside =
      folder_.go_back_to(setup_.folder->path, is_damaged ? ".damaged" : ".superseded");
  if (is_damaged) return;  // RunReport::start() reports the damage of each
  for (const auto& path : aside) {
    log_warning("the run resumes from ", setup_.folder->path, ", which `latest` names; the newer ",
                "checkpoint was renamed to ", path.string());
  }
}

/// Refuses or warns about options that differ from those of the resumed run.
void Checkpointer::check_changes(const Json& saved, const RunState& state) const {
  const TrainOptions& o = setup_.options;
  const std::vector<std::string> changes = check_resumed(saved, o);
  if (!is_first()) return;
  const bool is_base = setup_.layout.lora.has_value();  // --model may name its new place
  if (!is_base && o.model != TrainOptions{}.model && o.model != state.model_name) {
    log_warning("--model ", o.model, " is ignored: the run in ", o.out,
                " resumes with its own model, ", state.model_name);
  }
  for (const std::string& change : changes) log_warning(change);
  // The seed and the order also decide which texts share a sequence.
  const bool is_reordered =
      std::any_of(changes.begin(), changes.end(), [](const std::string& change) {
        return change.ends_with(option::kReordersData.consequence);
      });
  const bool repacks = is_reordered && (o.packing || saved.bool_or("packing", false));
  if (!repacks && saved.string_or("data", "") != to_hex(setup_.data->fingerprint())) {
    log_warning("the run in ", o.out, " was started on other data or with another --seq-len; ",
                "it resumes at step ", state.step, " of this data");
  }
}

void Checkpointer::require_space(const RunState& state) const {
  if (!is_first()) return;
  folder_.require_space(checkpoint(state), saves_ahead(state), state.early_stop.is_on());
}

bool Checkpointer::is_due(const RunState& state) const {
  const int64_t every = setup_.options.save_every;
  const bool is_best = state.early_stop.is_on() && state.early_stop.state().best_step == state.step;
  return is_best || (every > 0 && state.step % every == 0);
}

void Checkpointer::save(const RunState& state) {
  write(state, setup_.options.async_save);
}

void Checkpointer::poll() {
  if (setup_.options.async_save && !folder_.poll_save() && saved_ >= 0) note_resumable();
}

void Checkpointer::finish(const RunState& state) {
  wait();
  if (saved_ != state.step) write(state, /*async=*/false);
}

void Checkpointer::keep_best(const RunState& state) {
  const int64_t best = state.early_stop.state().best_step;
  if (best < 0) return;
  // A pending save must not remove the best checkpoint so far: the new one is not written yet.
  if (best == state.step) wait();
  folder_.keep(best);
}

void Checkpointer::note_resumable() {
  if (!is_first() || is_resumable_) return;
  is_resumable_ = true;
  const std::string command = resume_command(setup_.options);
  world_.note_resume_hint(command.size() < kMostHintBytes ? command
                                                          : "the same command with --resume");
}

Checkpoint Checkpointer::checkpoint(const RunState& state) const {
  const auto& lora = setup_.layout.lora;
  Checkpoint all{
      .step = state.step,
      .model = &rank_.model(),
      .optimizer = &rank_.optimizer(),
      .dtype = setup_.layout.compute_type,
      .carried = carried_,
      .state_json = state.json(setup_, mesh_),
      .adapter_config = lora ? adapter_config_json(*lora, rank_.model(), setup_.base_model) : "",
      .files = setup_.files};
  if (lora && !lora->trained_layers.empty()) {
    all.files.push_back({"config.json", setup_.config.dump()});
  }
  if (state.reference) all.files.push_back({std::string(kReferenceName), state.reference->file});
  return all;
}

/// The number of checkpoints that are still to be written.
int64_t Checkpointer::saves_ahead(const RunState& state) const {
  const int64_t last = saved_ == state.step && state.step >= setup_.num_steps ? 0 : 1;
  if (state.step >= setup_.num_steps) return last;
  const auto times_ahead = [&](int64_t every) {
    return every == 0 ? 0 : (setup_.num_steps - 1) / every - state.step / every;
  };
  const int64_t save = setup_.options.save_every, eval = setup_.options.eval_every;
  if (!state.early_stop.is_on()) return times_ahead(save) + last;
  // Each evaluation may be the best so far, which is then saved, unless its step is saved anyway.
  const int64_t both = save == 0 ? 0 : std::lcm(save, eval);
  return times_ahead(save) + times_ahead(eval) - times_ahead(both) + last;
}

void Checkpointer::write(const RunState& state, bool async) {
  const double start = monotonic_s();
  if (async) {
    folder_.async_save(checkpoint(state));
  } else {
    folder_.save(checkpoint(state));
    note_resumable();
  }
  saved_ = state.step;
  save_s_ += monotonic_s() - start;
}

}  // namespace cleave::inline train
