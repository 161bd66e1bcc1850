#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/base/median.h"
#include "cleave/base/resource_limits.h"
#include "cleave/bench/limits.h"
#include "cleave/bench/options.h"
#include "cleave/bench/timing.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/planner/layout_options.h"
#include "cleave/planner/machine.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/train/rank_model.h"

namespace cleave::inline bench {
namespace {

/// Random tokens; for a masked-LM model 15 % of the positions have a label.
Batch random_batch(const Model& model, int64_t batch_size, int64_t seq_len) {
  const at::Generator generator = at::detail::createCPUGenerator(1);
  Batch batch;
  batch.ids = at::randint(0, model.facts().vocab_size, {batch_size, seq_len}, generator, at::kLong);
  batch.labels = batch.ids.clone();
  if (task_of(model) == Task::kMlm) {
    batch.labels.masked_fill_(at::rand({batch_size, seq_len}, generator).gt(0.15), -100);
  }
  return batch;
}

struct TrainTimes {
  std::vector<double> step_s;
  Spent spent;
  double loss = 0;  // of the last step
  int64_t peak_rss = 0;
  MachineLimit limit;           // of all timed steps
  int64_t num_collectives = 0;  // in all timed steps
};

/// One rank of the benchmark.
class TrainBench {
 public:
  TrainBench(const BenchTrainOptions& options, const BenchShape& shape, World& world)
      : options_(options),
        mesh_(Mesh::build(world, {{"pp", 1}, {"dp", 1}, {"tp", options.tp}})),
        rank_(make_model(shape.config), layout(shape), mesh_, world, {.weight_decay = 0.1}),
        batch_(random_batch(rank_.model(), options.batch_size,
                            options.seq_len > 0 ? options.seq_len : shape.seq_len)) {
    choose_gemm(options.gemm, mesh_["tp"]);
    materialize(rank_.model());
    rank_.refresh_weights();
  }

  TrainTimes run() {
    TrainTimes times;
    for (int64_t i = 0; i < options_.warmup; ++i) step(i);
    {
      const OpClock clock;
      for (int64_t i = 0; i < options_.steps; ++i) {
        const double start = monotonic_s();
        times.loss = step(options_.warmup + i);
        times.step_s.push_back(monotonic_s() - start);
      }
      times.spent = spent_of(clock);
    }
    times.num_collectives = collective_calls(times.spent);
    times.peak_rss = peak_rss_bytes();
    times.limit = measure_limit(mesh_["tp"], times.spent.products,
                                scalar_type(dtype_from_name(options_.dtype).value()));
    return times;
  }

 private:
  [[nodiscard]] ParallelConfig layout(const BenchShape& shape) const {
    LayoutOptions layout;
    layout.tp = options_.tp;
    return make_parallel_config(layout, *make_model(shape.config),
                                scalar_type(dtype_from_name(options_.dtype).value()), 0);
  }

  /// A full training step, as in `cleave train`.
  double step(int64_t number) {
    rank_.optimizer().zero_grad();
    const PassResult pass = rank_.train_pass({&batch_, 1}, 0, number);
    rank_.step(1e-4, clip_factor(pass.norm.value, 1.0));
    mesh_["tp"].barrier("end of a step");
    return pass.loss;
  }

  const BenchTrainOptions& options_;
  Mesh mesh_;
  RankModel rank_;
  Batch batch_;
};

/// Seconds of the products and collectives of a step at the machine's best speed.
double limit_of_step_s(const TrainTimes& times) {
  const double all_s = times.limit.products_s +
                       static_cast<double>(times.num_collectives) * times.limit.all_reduce_s;
  return all_s / static_cast<double>(times.step_s.size());
}

nlohmann::ordered_json result_of(const BenchTrainOptions& options, const TrainTimes& times,
                                 int64_t num_tokens) {
  const double step_s = median(times.step_s);
  const auto [least, most] = std::minmax_element(times.step_s.begin(), times.step_s.end());
  return {{"bench", "train"},
          {"shape", options.shape},
          {"tp", options.tp},
          {"dtype", options.dtype},
          {"batch_size", options.batch_size},
          {"dropout", options.dropout},
          {"tokens", num_tokens},
          {"steps", times.step_s.size()},
          {"step_ms", step_s * 1e3},
          {"step_ms_min", *least * 1e3},
          {"step_ms_max", *most * 1e3},
          {"tokens_per_s", static_cast<double>(num_tokens) / step_s},
          {"peak_rss_bytes", times.peak_rss},
          {"loss", times.loss},
          {"limit_ms", limit_of_step_s(times) * 1e3},
          {"share_of_limit", limit_of_step_s(times) / step_s},
          {"best_flops_per_rank", times.limit.products / times.limit.products_s},
          {"all_reduce_us", times.limit.all_reduce_s * 1e6},
          {"gemm", std::string(name(gemm()))},
          {"share", shares_of(times.spent)}};
}

}  // namespace
}  // namespace cleave::inline bench

void cleave_bench_train(const cleave::BenchTrainOptions& options) {
  using namespace cleave;  // NOLINT(google-build-using-namespace)
  const BenchShape shape = bench_shape(options.shape, options.dropout);
  const auto times = measured_by_rank_0(
      options, [&](World& world) { return TrainBench(options, shape, world).run(); });
  if (!times) return;
  const int64_t seq_len = options.seq_len > 0 ? options.seq_len : shape.seq_len;
  const auto result = result_of(options, *times, options.batch_size * seq_len);
  const double step_s = median(times->step_s);
  char line[500];
  (void)std::snprintf(
      line, sizeof line,
      "%s, tp=%d, %s: %.0f ms/step (%.0f to %.0f), %.0f tokens/s, %.2f GiB\n"
      "  %s of this machine's limit: the products of the linear layers take %.0f ms at the best\n"
      "  speed measured just now (%.0f GFLOP/s per rank), with collectives of %.1f us",
      options.shape.c_str(), options.tp, options.dtype.c_str(), step_s * 1e3,
      result["step_ms_min"].get<double>(), result["step_ms_max"].get<double>(),
      result["tokens_per_s"].get<double>(), static_cast<double>(times->peak_rss) / (1 << 30),
      percent(limit_of_step_s(*times), step_s).c_str(), limit_of_step_s(*times) * 1e3,
      times->limit.products / times->limit.products_s / 1e9, times->limit.all_reduce_s * 1e6);
  print_bench(options, result, line, times->spent, options.steps);
}
