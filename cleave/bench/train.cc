#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/bench/options.h"
#include "cleave/bench/shapes.h"
#include "cleave/kernels/cpu/gemm.h"
#include "cleave/kernels/op_clock.h"
#include "cleave/mesh/job.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/optim/optimizer.h"
#include "cleave/train/rank_model.h"

namespace cleave {
namespace {

/// Random tokens; for a masked model 15 % of the places have a label.
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

/// What rank 0 saw of the timed steps.
struct TrainTimes {
  std::vector<double> step_s;
  std::array<double, kNumTimeKinds> kinds{};  // seconds of all timed steps
  std::vector<OpTime> operations;
  double loss = 0;
};

/// One rank of the bench.
class TrainBench {
 public:
  TrainBench(const BenchTrainOptions& options, const BenchShape& shape, World& world)
      : options_(options),
        mesh_(Mesh::build(world, {{"pp", 1}, {"dp", 1}, {"tp", options.tp}})),
        rank_(make_model(shape.config), layout(shape), mesh_, world),
        batch_(random_batch(rank_.model(), options.batch_size,
                            options.seq_len > 0 ? options.seq_len : shape.seq_len)) {
    choose_gemm(options.gemm, mesh_["tp"]);
    materialize(rank_.model());
    rank_.leaves_changed();
    optimizer_.emplace(rank_.parameters(), OptimizerOptions{.weight_decay = 0.1});
  }

  TrainTimes run() {
    TrainTimes times;
    for (int64_t i = 0; i < options_.warmup; ++i) step(i);
    const OpClock clock;
    for (int64_t i = 0; i < options_.steps; ++i) {
      const double start = monotonic_s();
      times.loss = step(options_.warmup + i);
      times.step_s.push_back(monotonic_s() - start);
    }
    times.kinds = clock.seconds();
    times.operations = clock.operations();
    return times;
  }
  [[nodiscard]] const Batch& batch() const { return batch_; }

 private:
  [[nodiscard]] TrainLayout layout(const BenchShape& shape) const {
    LayoutOptions layout;
    layout.tp = options_.tp;
    return layout_of(layout, *make_model(shape.config),
                     scalar_type(dtype_from_name(options_.dtype).value()), 0);
  }

  /// Everything that a training step is, as in cleave train.
  double step(int64_t number) {
    optimizer_->zero_grad();
    const PassResult pass = rank_.train_pass({&batch_, 1}, 0, number);
    clip_gradients(rank_.parameters(), rank_.gradient_norm().value, 1.0);
    optimizer_->step(1e-4);
    rank_.leaves_changed();
    mesh_["tp"].barrier("end of a step");
    return pass.loss;
  }

  const BenchTrainOptions& options_;
  Mesh mesh_;
  RankModel rank_;
  Batch batch_;
  std::optional<Optimizer> optimizer_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

nlohmann::ordered_json result_of(const BenchTrainOptions& options, const TrainTimes& times,
                                 int64_t num_tokens) {
  const double step_s = median(times.step_s);
  const auto [least, most] = std::minmax_element(times.step_s.begin(), times.step_s.end());
  double all = 0;
  for (const double s : times.step_s) all += s;
  nlohmann::ordered_json shares;
  for (int k = 0; k < kNumTimeKinds; ++k) {
    const auto i = static_cast<size_t>(k);
    shares[std::string(name(static_cast<TimeKind>(k)))] = times.kinds[i] / all;
  }
  return {{"bench", "train"},
          {"shape", options.shape},
          {"tp", options.tp},
          {"dtype", options.dtype},
          {"batch_size", options.batch_size},
          {"tokens", num_tokens},
          {"steps", times.step_s.size()},
          {"step_ms", step_s * 1e3},
          {"step_ms_min", *least * 1e3},
          {"step_ms_max", *most * 1e3},
          {"tokens_per_s", static_cast<double>(num_tokens) / step_s},
          {"peak_rss_bytes", peak_rss_bytes()},
          {"loss", times.loss},
          {"gemm", std::string(name(gemm()))},
          {"share", shares}};
}

void print_for_people(const nlohmann::ordered_json& r) {
  std::printf("%s, tp=%d, %s: %.0f ms a step (%.0f to %.0f), %.0f tokens/s, %.2f GiB\n",
              r["shape"].get<std::string>().c_str(), r["tp"].get<int>(),
              r["dtype"].get<std::string>().c_str(), r["step_ms"].get<double>(),
              r["step_ms_min"].get<double>(), r["step_ms_max"].get<double>(),
              r["tokens_per_s"].get<double>(),
              static_cast<double>(r["peak_rss_bytes"].get<int64_t>()) / (1 << 30));
  for (const auto& [kind, share] : r["share"].items()) {
    std::printf("  %-16s %5.1f %%\n", kind.c_str(), share.get<double>() * 100);
  }
}

void print_operations(const TrainTimes& times, int64_t count) {
  const auto steps = static_cast<double>(times.step_s.size());
  std::printf("%-44s %12s %12s\n", "operation (rank 0)", "ms a step", "calls a step");
  for (const OpTime& op : times.operations) {
    if (count-- <= 0) break;
    std::printf("%-44s %12.2f %12.1f\n", op.name.c_str(), op.seconds / steps * 1e3,
                static_cast<double>(op.calls) / steps);
  }
}

}  // namespace
}  // namespace cleave

void cleave_bench_train(const cleave::BenchTrainOptions& options) {
  using namespace cleave;
  const BenchShape shape = bench_shape(options.shape);
  TrainTimes times;
  int64_t num_tokens = 0;
  run_job({.num_ranks = options.tp,
           .threads_per_rank = options.threads_per_rank,
           .ranks = {.timeout_s = options.timeout_s, .flight_log_folder = {}}},
          [&](World& world) {
            TrainBench bench(options, shape, world);
            TrainTimes seen = bench.run();
            if (world.rank() != 0) return;
            times = std::move(seen);
            num_tokens = bench.batch().ids.numel();
          });
  const nlohmann::ordered_json result = result_of(options, times, num_tokens);
  if (options.json) {
    std::printf("%s\n", result.dump().c_str());
  } else {
    print_for_people(result);
  }
  if (options.operations > 0) print_operations(times, options.operations);
}
