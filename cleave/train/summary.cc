#include "cleave/train/summary.h"

#include <ctime>
#include <filesystem>
#include <numeric>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cleave/base/byte_count.h"
#include "cleave/base/progress.h"
#include "cleave/base/version.h"
#include "cleave/mesh/place.h"
#include "cleave/parallel/held_memory.h"
#include "cleave/report/record.h"
#include "cleave/runtime/cpu_binding.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline train {
namespace {

namespace fs = std::filesystem;

int64_t num_weights(const Parameters& parameters) {
  int64_t sum = 0;
  for (const auto& p : parameters) sum += p->numel();
  return sum;
}

/// ", 1.1M of them trained"; "" if all are.
std::string trained_text(Model& model) {
  const Parameters all = model.parameters();
  const Parameters trained = trained_of(all);
  if (trained.size() == all.size()) return "";
  return str(", ", count_text(static_cast<double>(num_weights(trained))), " of them trained");
}

/// "2 cores each", or "99 threads each on 2 cores" if a rank has more threads than cores.
std::string cores_text() {
  const auto threads = static_cast<size_t>(at::get_num_threads());
  const size_t cores = usable_cpus().size();
  if (threads > cores) {
    return str(threads, " threads each on ", cores, cores == 1 ? " core" : " cores");
  }
  return str(threads, threads == 1 ? " core each" : " cores each");
}

/// "a, b"
std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// "a.jsonl:0.7, b.jsonl:0.3"
std::string data_text(const TrainSetup& setup) {
  std::vector<std::string> names = setup.options.data;
  for (size_t i = 0; i < setup.weights.size(); ++i) names[i] += str(':', setup.weights[i]);
  return joined(names);
}

/// "{0,1} {2,3}"
std::string groups(const Mesh& mesh, const MeshDim& dim) {
  std::string text;
  for (const auto& group : mesh.groups(dim.name)) {
    text += text.empty() ? "{" : " {";
    for (size_t i = 0; i < group.size(); ++i) text += str(i == 0 ? "" : ",", group[i]);
    text += "}";
  }
  return text;
}

/// "a, b, c and 4 more"
std::string first_of(const std::set<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  size_t shown = 0;
  for (const std::string& name : names) {
    if (shown == kShown) return str(text, " and ", names.size() - kShown, " more");
    text += str(shown++ == 0 ? "" : ", ", name);
  }
  return text;
}

}  // namespace

std::string task_line(Model& model, const LoadResult& loaded) {
  std::string line = str("task    ", model.task(), ": ", loaded.fresh.size(), " of ",
                         model.parameters().size(), " weights are newly initialized");
  if (!loaded.fresh.empty()) line += str(" (", first_of(loaded.fresh), ")");
  const size_t num_left = loaded.left_out.size();
  line += str(", ", counted(num_left, "tensor"), " of the folder ", num_left == 1 ? "is" : "are",
              " not used");
  if (!loaded.left_out.empty()) line += str(" (", first_of(loaded.left_out), ")");
  return line;
}

std::string resume_command(const TrainOptions& options) {
  const std::string& typed = options.command;
  if (typed.empty()) return str("the same options with --out ", options.out, " --resume");
  return options.resume ? typed : typed + " --resume";
}

std::string time_line(const StepTime& time, const Machine& machine) {
  return str("time    ", machine.num_cpus > 0 ? "about " : "at least ", duration_text(time.total()),
             " per step (", kinds_text(time), ")");
}

std::vector<std::string> run_header(const TrainSetup& setup, const std::string& model_name,
                                    Model& model, const World& world, const Machine& machine) {
  const ModelFacts& f = model.facts();
  const TrainOptions& o = setup.options;
  const std::string_view sample = setup.task == Task::kDpo ? "pair" : "sequence";
  const std::string kv =
      f.num_kv_heads == f.num_heads ? "" : str(" (", counted(f.num_kv_heads, "KV head"), ")");
  const std::string layout = setup.layout.describe();
  const char* as = layout.find(',') == std::string::npos ? " as " : ", as ";
  std::vector<std::string> lines = {
      str("model   ", model_name, ": ",
          count_text(static_cast<double>(num_weights(model.parameters()))),
          setup.folder ? " weights" : " new weights", trained_text(model), ", ",
          counted(f.num_layers, "layer"), " of width ", f.hidden, ", ",
          counted(f.num_heads, "head"), kv, ", vocabulary ", f.vocab_size),
      str("ranks   ", layout, as, world.ranks_are_threads() ? "threads" : "processes", ", ",
          cores_text(), ", ", o.dtype, ", ",
          o.device == "cpu" ? str("matrix products by ", name(gemm())) : "one GPU each"),
      str("data    ", counted(setup.data->size(), sample),
          setup.fills_sequences ? str(" of ", o.seq_len, " tokens") : "",
          setup.tokenizer ? str(", tokenizer ", setup.tokenizer->kind()) : ", token ids"),
      str("steps   ", setup.num_steps, " of ", counted(o.batch_size, sample), ", ", o.optimizer,
          ", lr ", o.lr, ", ", o.schedule)};
  if (setup.utilization && setup.task == Task::kLm) {
    lines.insert(lines.begin() + 3, str("padding ", setup.utilization->text()));
  }
  if (setup.planned) {
    const StepTime time = step_time(*setup.planned, setup.layout, machine);
    // The forecast is of a step whose sequences are as long as the longest one of the data.
    const bool has_lengths = !setup.fills_sequences && !o.packing;
    lines.push_back(time_line(time, machine) + (has_lengths ? ", for the longest sequences" : ""));
  }
  return lines;
}

namespace {

/// What decides how the weights change; empty texts are left out of the report.
std::vector<std::pair<std::string, std::string>> training_settings(const TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  const LrSchedule& lr = setup.schedule;
  const bool has_betas = setup.optimizer.kind != OptimizerOptions::Kind::kSgd;
  const auto& lora = setup.layout.lora;
  return {{"batch size", str(o.batch_size)},
          {"micro-batch size", str(setup.micro_batch_size)},
          {"steps", str(setup.num_steps)},
          {"optimizer", o.optimizer},
          {"learning rate", str(o.lr)},
          {"schedule", o.schedule},
          {"minimum learning rate", lr.kind == LrSchedule::Kind::kConstant ? "" : str(lr.min)},
          {"warm-up", counted(lr.warmup, "step")},
          {"decay", lr.kind == LrSchedule::Kind::kWsd ? counted(lr.decay, "step") : ""},
          {"Adam betas", has_betas ? str(o.adam_betas[0], ", ", o.adam_betas[1]) : ""},
          {"Adam epsilon", has_betas ? str(o.adam_eps) : ""},
          {"weight decay", str(o.weight_decay)},
          {"weight decay on", o.decay_on},
          {"parameter groups", joined(o.param_groups)},
          {"adapters", lora ? lora->flags() : ""},
          {"decay of averaged weights", o.ema > 0 ? str(o.ema) : ""},
          {"gradient clipping", str(o.clip)},
          {"early stopping", o.early_stop > 0 ? str("after ", counted(o.early_stop, "evaluation"),
                                                    " without improvement")
                                              : ""}};
}

}  // namespace

RunRecord run_record(const TrainSetup& setup, const std::string& model_name, Model& model,
                     const Mesh& mesh, const World& world) {
  const ModelFacts& f = model.facts();
  const TrainOptions& o = setup.options;
  std::error_code no_folder;  // it may have been removed
  const bool trains_on_chats = setup.chat_template && setup.task == Task::kLm;
  RunRecord r{.title = str(model_name, " on ", mesh.size(), mesh.size() == 1 ? " rank" : " ranks"),
              .num_steps = setup.num_steps};
  r.settings = {
      {"started", utc_text(std::time(nullptr))},
      {std::string(kCommandSetting), o.command},
      {"cleave version", std::string(version())},
      {"git commit of the working folder", git_commit(fs::current_path(no_folder))},
      {"host", host_name()},
      {"CPU", cpu_name()},
      {"cores", str(std::thread::hardware_concurrency())},
      {"ranks", str(mesh.size(), world.ranks_are_threads() ? " (threads)" : " (processes)")},
      {"layout", setup.layout.describe()},
      {"threads per rank", str(at::get_num_threads())},
      {"device", o.device},
      {"matrix products", std::string(name(gemm()))},
      {"dtype", o.dtype},
      {"model", model_name},
      {"parameters", str(num_weights(model.parameters()))},
      {"layers", str(f.num_layers)},
      {"hidden size", str(f.hidden)},
      {"heads", str(f.num_heads, " (", f.num_kv_heads, " KV heads)")},
      {"vocabulary", str(f.vocab_size)},
      {"task", setup.task == Task::kDpo ? "dpo" : model.task()},
      {"dpo-beta", setup.task == Task::kDpo ? str(o.dpo_beta) : ""},
      {"data files", data_text(setup)},
      {setup.task == Task::kDpo ? "pairs" : "sequences", str(setup.data->size())},
      {"evaluation files", joined(o.eval_data)},
      {"tokenizer", setup.tokenizer ? std::string(setup.tokenizer->kind()) : ""},
      {"sequence length", str(o.seq_len)},
      {"packing", o.packing ? "on" : ""},
      {"order of the data", o.shuffle ? "shuffled" : "that of the files"},
      {"tokens of chats with loss", trains_on_chats ? o.train_on : ""},
      {std::string(kSavesSetting),
       o.save_every > 0 ? str("every ", counted(o.save_every, "step"), " and at the end")
                        : "at the end"},
      {"seed", str(o.seed)}};
  const auto training = training_settings(setup);
  r.settings.insert(r.settings.end(), training.begin(), training.end());
  for (const MeshDim& d : mesh.dims()) {
    if (d.size > 1) r.settings.emplace_back("ranks of each " + d.name + " group", groups(mesh, d));
  }
  std::erase_if(r.settings, [](const auto& setting) { return setting.second.empty(); });
  return r;
}

std::vector<RankMemory> rank_memory(const TrainSetup& setup, const Axis& everyone, const Mesh& mesh,
                                    RankModel& rank, int64_t most_bytes) {
  const KindBytes held = held_bytes(rank.parameters(), &rank.optimizer(), setup.layout.sharding);
  const int64_t rest =
      std::max<int64_t>(0, most_bytes - std::accumulate(held.begin(), held.end(), int64_t{0}));
  const int64_t planned =
      setup.planned ? setup.planned->of_rank(setup.layout, everyone.rank()).memory.total() : 0;
  const Tensor mine = at::tensor({held[kWeightBytes], held[kGradientBytes], held[kMomentBytes],
                                  held[kGatheredBytes] + rest, planned},
                                 at::kLong);
  const std::vector<int64_t> five_each(static_cast<size_t>(everyone.size()), 5);
  const Tensor all = everyone.all_gather(mine, 0, five_each, "memory of each rank");
  std::vector<RankMemory> out;
  for (int64_t r = 0; r < everyone.size(); ++r) {
    const auto part = [&](int64_t i) { return all[5 * r + i].item<int64_t>(); };
    out.push_back({.rank = place_text(mesh, r),
                   .bytes = {{"weights", part(0)},
                             {"gradients", part(1)},
                             {"optimizer", part(2)},
                             {"activations", part(3)}},
                   .forecast = part(4)});
  }
  return out;
}

}  // namespace cleave::inline train
