#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <unistd.h>

#include "cleave/base/byte_count.h"
#include "cleave/base/log.h"
#include "cleave/base/progress.h"
#include "cleave/base/resource_limits.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/model_path.h"
#include "cleave/format/gguf.h"
#include "cleave/mesh/job.h"
#include "cleave/mesh/mesh.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/planner/cluster_command.h"
#include "cleave/planner/dry_run.h"
#include "cleave/planner/layout_options.h"
#include "cleave/planner/machine.h"
#include "cleave/planner/rank_layouts.h"

namespace cleave::inline planner {
namespace {

using Object = nlohmann::ordered_json;

Json config_of(const PlanOptions& o) {
  namespace fs = std::filesystem;
  if (fs::is_directory(o.model) || is_gguf(o.model) || is_hub_name(o.model)) {
    return ModelFolder::open(o.model).config;
  }
  if (fs::exists(o.model)) return Json::parse_file(o.model);
  return preset_config(o.model, o.vocab_size);
}

StepShape step_of(const PlanOptions& o) {
  return {.batch_size = o.batch_size,
          .micro_batch_size = o.micro_batch_size,
          .seq_len = o.seq_len,
          .optimizer = {.kind = OptimizerOptions::kind_from_name(o.optimizer)}};
}

at::ScalarType type_of(const PlanOptions& o) {
  const auto dtype = dtype_from_name(o.dtype);
  CLEAVE_CHECK(dtype, Code::kUsage, "--dtype ", o.dtype, "; choose fp32, bf16, fp16 or fp64");
  return scalar_type(*dtype);
}

/// Memory in bytes for this process: of the machine, or of its container if that has less.
int64_t memory_here() {
  const int64_t of_machine = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::min(of_machine, cgroup_limits().memory.value_or(of_machine));
}

int64_t limit_of(const PlanOptions& o, int num_ranks) {
  if (o.memory.empty()) return memory_here() / num_ranks;
  return static_cast<int64_t>(memory_limit(o.memory));
}

/// Measured by rank threads on this machine: as many as a run has, at most four for each CPU.
Machine machine_here(at::ScalarType type, int num_ranks, const MeasuredRun& run) {
  constexpr int kMostRanksOfCpu = 4;
  Machine machine;
  JobOptions job;
  job.num_ranks = std::min(num_ranks, kMostRanksOfCpu * cpus_here());
  job.ranks.flight_log_folder.clear();
  run_job(job, [&](World& world) {
    const Axis all = Mesh::build(world, {{"all", world.size()}})["all"];
    choose_gemm("auto", all);
    const Machine seen = measure_machine(all, type, at::kCPU, run);
    if (world.rank() == 0) machine = seen;
  });
  return machine;
}

Object json_of(const DryTraffic& t) {
  return {{"bytes", t.bytes}, {"calls", t.num_calls}};
}

Object json_of(const StepTime& time) {
  Object out = Object::object();
  for (int k = 0; k < kNumTimeKinds; ++k) {
    const auto kind = static_cast<TimeKind>(k);
    out[std::string(name(kind))] = time.of(kind);
  }
  return out;
}

Object json_of(const LayoutCandidate& c) {
  Object out = {{"layout", c.layout.describe()},
                {"tp", c.layout.tp},
                {"pp", c.layout.pp},
                {"dp", c.layout.dp},
                {"ep", c.layout.ep}};
  if (!c.refused.empty()) {
    out["refused"] = c.refused;
    return out;
  }
  for (const RankForecast& r : c.forecast.ranks) {
    const MemoryForecast& m = r.memory;
    out["ranks"].push_back(
        {{"bytes", m.total()},
         {"weights", m.weights},
         {"optimizer", m.optimizer},
         {"gradients", m.gradients},
         {"activations", m.activations},
         {"sent", {{"tp", json_of(r.tp)}, {"dp", json_of(r.dp)}, {"pp", json_of(r.pp)}}}});
  }
  out["fits"] = c.fits;
  out["step_s"] = c.time.total();
  out["time"] = json_of(c.time);
  out["idle_share"] = c.forecast.idle_share;
  return out;
}

std::string size(int64_t bytes) {
  return right_aligned(bytes_text(bytes), 12);
}

std::string sent_text(const char* axis, const DryTraffic& t) {
  if (t.num_calls == 0) return "";
  return str("  ", axis, " ", bytes_text(t.bytes), " in ", t.num_calls,
             t.num_calls == 1 ? " call" : " calls");
}

std::string time_text(const StepTime& t) {
  return str(duration_text(t.total()), " a step: ", kinds_text(t));
}

void print(const LayoutCandidate& c, int64_t limit) {
  log_info("layout   ", c.layout.describe());
  log_info("memory        weights   optimizer   gradients activations       total");
  for (size_t p = 0; p < c.forecast.ranks.size(); ++p) {
    const MemoryForecast& m = c.forecast.ranks[p].memory;
    log_info("  pp ", p, "   ", size(m.weights), size(m.optimizer), size(m.gradients),
             size(m.activations), size(m.total()));
  }
  if (!c.fits) {
    log_info("too large: a rank may take ", bytes_text(limit));
  }
  for (size_t p = 0; p < c.forecast.ranks.size(); ++p) {
    const RankForecast& r = c.forecast.ranks[p];
    const std::string sent = sent_text("tp", r.tp) + sent_text("dp", r.dp) + sent_text("pp", r.pp);
    log_info("sent by pp ", p, sent.empty() ? "  nothing" : sent);
  }
  if (c.forecast.idle_share > 0) {
    log_info("idle     ", std::lround(100 * c.forecast.idle_share), " % of the pipeline's time");
  }
  log_info("time     ", time_text(c.time));
}

void print(const std::vector<LayoutCandidate>& all, int64_t limit) {
  log_info("a rank may take ", bytes_text(limit));
  log_info("       memory        step  layout");
  for (const LayoutCandidate& c : all) {
    if (!c.refused.empty()) {
      log_info("      refused              ", c.layout.describe(), ": ", c.refused);
    } else {
      log_info(' ', size(c.forecast.most_bytes()), right_aligned(duration_text(c.time.total()), 12),
               "  ", c.layout.describe(), c.fits ? "" : ": too large");
    }
  }
}

void draw(const PlanOptions& o, const ParallelConfig& layout, const StepShape& step) {
  const int64_t rows = (step.batch_size + layout.dp - 1) / layout.dp;
  const Schedule schedule =
      make_schedule({.kind = layout.schedule,
                     .num_ranks = layout.pp,
                     .stages_per_rank = layout.stages_per_rank,
                     .num_micro_batches = static_cast<int>((rows + step.micro_batch_size - 1) /
                                                           step.micro_batch_size)});
  write_atomic(o.draw_schedule, std::string_view(draw_schedule(schedule)));
  if (!o.json) log_info("schedule drawn in ", o.draw_schedule);
}

void plan_one(const PlanOptions& o, const Json& config) {
  const auto model = make_model(config);
  ParallelConfig layout = make_parallel_config(o, *model, type_of(o), 0);
  layout.lora = lora_from(o);
  StepShape step = step_of(o);
  if (step.micro_batch_size == 0) {
    step.micro_batch_size = default_micro_batch_size(step.batch_size, layout);
  }
  LayoutCandidate c{
      .layout = layout, .forecast = forecast(config, layout, step), .time = {}, .refused = {}};
  c.time = step_time(c.forecast, layout,
                     machine_here(layout.compute_type, layout.num_ranks(),
                                  {c.forecast.work(), c.forecast.most_bytes()}));
  const int64_t limit = limit_of(o, layout.num_ranks());
  c.fits = c.forecast.most_bytes() <= limit;
  if (o.parameters) {
    try_layout(*model, layout);
    log_info(describe_split(*model));
  }
  if (o.json) {
    log_info(json_of(c).dump());
  } else {
    print(c, limit);
  }
  if (!o.draw_schedule.empty()) draw(o, layout, step);
}

void plan_rank(const PlanOptions& o, const Json& config) {
  ParallelConfig layout = make_parallel_config(o, *make_model(config), type_of(o), 0);
  layout.lora = lora_from(o);
  StepShape step = step_of(o);
  if (step.micro_batch_size == 0) {
    step.micro_batch_size = default_micro_batch_size(step.batch_size, layout);
  }
  const RankProgram program = rank_program(config, layout, step, o.rank);
  if (o.json) return log_info(rank_program_json(program, layout, step, o.rank));
  print_rank_program(program, layout, step, o.rank);
  if (o.parameters) print_rank_parameters(program);
}

/// A live line on a terminal, once a search has taken a second.
class SearchProgress {
 public:
  void show(int64_t done, int64_t total) {
    if (monotonic_s() - start_s_ < 1) return;
    if (!progress_) {
      constexpr double kNoLines = 1e9;  // without a terminal: only the result
      progress_.emplace(ProgressOptions{
          .total = total, .done = done, .unit = "layout", .line_every_s = kNoLines});
    }
    progress_->update(done);
  }

 private:
  double start_s_ = monotonic_s();
  std::optional<Progress> progress_;
};

std::vector<LayoutCandidate> all_layouts(const PlanOptions& o, const Json& config, int64_t limit) {
  LayoutSearch search{.num_ranks = o.ranks, .step = step_of(o), .limit = limit};
  search.common = {
      .compute_type = type_of(o), .reduce_type = reduce_type_of(o), .lora = lora_from(o)};
  search.measure = [&](const MeasuredRun& run) {
    return machine_here(search.common.compute_type, o.ranks, run);
  };
  SearchProgress progress;
  search.on_progress = [&](int64_t done, int64_t total) { progress.show(done, total); };
  return rank_layouts(config, search);
}

void plan_many(const PlanOptions& o, const Json& config) {
  const int64_t limit = limit_of(o, o.ranks);
  const std::vector<LayoutCandidate> all = all_layouts(o, config, limit);
  if (!o.json) return print(all, limit);
  Object out = Object::array();
  for (const LayoutCandidate& c : all) out.push_back(json_of(c));
  log_info(out.dump());
}

/// Bytes per second that all cores together copy, each read and written once.
double copy_rate() {
  constexpr int64_t kElements = 32 << 20;
  const at::Tensor from = at::zeros({kElements}), to = at::empty({kElements});
  double best_s = 1e9;
  for (int i = 0; i < 4; ++i) {
    const double begin = monotonic_s();
    to.copy_(from);
    best_s = std::min(best_s, monotonic_s() - begin);
  }
  return 2.0 * kElements * sizeof(float) / best_s;
}

/// This host as a cluster of hosts with `devices` ranks, of which each has a share of its host.
Cluster cluster_here(const PlanOptions& o, int devices) {
  const double ranks = devices;
  const Machine machine = machine_here(type_of(o), 2, {});
  Cluster c;
  c.name = "here";
  c.measured_here = true;
  c.sources = {"measured now: matrix products, copies, collectives of two ranks"};
  c.devices_per_host = devices;
  c.memory_bytes = static_cast<double>(memory_here()) / ranks;
  c.matrix_flops.fill(machine.flops / ranks);
  c.vector_flops = machine.flops / ranks;
  c.memory_rate = copy_rate() / ranks;
  c.host_link_rate = c.net_link_rate = machine.bytes_per_s;
  c.host_latency_s = c.net_latency_s = machine.call_s / 2;
  c.fitted = {.matrix_share = 1,
              .memory_share = 1,
              .host_link_share = 1,
              .net_link_share = 1,
              .layer_call_s = 0,
              .runtime_bytes = 0};
  return c;
}

/// The model's positions; more than any sequence has tokens if its config does not say.
int64_t positions_of(const Json& config) {
  return config.int_or(config.has("n_positions") ? "n_positions" : "max_position_embeddings",
                       std::numeric_limits<int64_t>::max(), 1);
}

void warn_of_length(const PlanOptions& o, const Json& config) {
  const int64_t longest = positions_of(config);
  if (o.seq_len > longest) {
    log_warning("--seq-len ", o.seq_len, " is longer than the ", longest,
                " positions of the model; train refuses it");
  }
}

void plan_model(const PlanOptions& o, const Json& config) {
  if (!o.cluster.empty()) {
    const auto here = [&](int devices) { return cluster_here(o, devices); };
    return plan_on_cluster(o, config,
                           o.cluster == "here" ? here(o.ranks) : read_cluster(o.cluster, here));
  }
  if (o.dry_run) return plan_rank(o, config);
  o.ranks == 0 ? plan_one(o, config) : plan_many(o, config);
}

void plan(PlanOptions o) {
  if (!o.memory.empty()) (void)memory_limit(o.memory);  // before minutes of work
  if (!o.runs.empty()) return plan_runs(o);
  const Json config = config_of(o);
  if (o.seq_len == 0) o.seq_len = std::min(kDefaultSeqLen, positions_of(config));
  plan_model(o, config);
  warn_of_length(o, config);  // last: a model with a table of positions has refused the length
}

}  // namespace
}  // namespace cleave::inline planner

void cleave_plan(const cleave::PlanOptions& options) {
  cleave::plan(options);
}
