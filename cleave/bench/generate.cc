#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/base/median.h"
#include "cleave/base/resource_limits.h"
#include "cleave/bench/options.h"
#include "cleave/bench/timing.h"
#include "cleave/generate/decoder.h"
#include "cleave/generate/runnable.h"
#include "cleave/kernels/cpu/int4_loops.h"
#include "cleave/mesh/mesh.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/nn/linear.h"
#include "cleave/parallel/plan.h"
#include "cleave/planner/machine.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline bench {
namespace {

struct GenerateTimes {
  std::vector<double> prefill_s, decode_s;  // per run
  Spent spent;                              // of decoding, in a separate run
  int64_t matrix_bytes = 0;                 // of all ranks: read for each token
  double memory_bytes_per_s = 0;            // read by all ranks together
  int64_t peak_rss = 0;
};

/// Bytes of this rank's matrices in the form of the products.
int64_t matrix_bytes_of(Model& model, const std::string& dtype, WeightForm form) {
  const bool is_int4 = form == WeightForm::kInt4 || form == WeightForm::kInt4Sym;
  int64_t bytes = 0;
  model.walk([&](Layer& layer) {
    const auto* linear = dynamic_cast<Linear*>(&layer);
    if (linear == nullptr) return;
    const int64_t count = c10::multiply_integers(linear->weight()->local_shape());
    if (is_int4 && linear->takes_int4()) {
      // fp16 scales, and minimums, of the groups
      bytes += count / 2 + count / kInt4Group * (form == WeightForm::kInt4 ? 4 : 2);
    } else {
      bytes +=
          count * (form == WeightForm::kPlain ? item_bytes(dtype_from_name(dtype).value()) : 1);
    }
  });
  return bytes;
}

/// Bytes per second that all ranks together read in a plain sum, over as many bytes as their
/// matrices have, so that caches help equally. The best of seven.
double memory_speed(const Axis& tp, int64_t bytes) {
  constexpr int64_t kMostBytes = 256 << 20;
  const Tensor read = at::ones({std::min(bytes, kMostBytes) / 4}, at::kFloat);
  double best_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 7; ++i) {
    tp.barrier("start of reading memory");
    const double start = monotonic_s();
    at::sum(read);
    tp.barrier("end of reading memory");
    best_s = std::min(best_s, monotonic_s() - start);
  }
  return static_cast<double>(tp.size() * read.numel() * 4) / best_s;
}

/// The likeliest id of each sequence.
Ids best_ids(const Scores& scores) {
  Ids ids;
  for (const Choice& choice : best_choices(scores, scores)) ids.push_back(choice.id);
  return ids;
}

GenerateTimes timed(const BenchGenerateOptions& o, const BenchShape& shape, World& world) {
  const at::NoGradGuard no_grad;
  const Axis tp = Mesh::build(world, {{"tp", o.tp}})["tp"];
  choose_gemm(o.gemm, tp);
  const auto model = make_model(shape.config);
  parallelize_module(*model, tp, model->plan());
  const WeightForm form = weight_form(o.dtype);
  const bool is_plain = form == WeightForm::kPlain;
  materialize(*model,
              {.dtype = is_plain ? scalar_type(dtype_from_name(o.dtype).value()) : at::kFloat});
  GenerateTimes times;
  const int64_t own_bytes = matrix_bytes_of(*model, o.dtype, form);
  times.matrix_bytes =
      tp.all_reduce(at::scalar_tensor(own_bytes, at::kLong), "bytes of matrices").item<int64_t>();
  prepare_weights(*model, form);
  const at::Generator generator = at::detail::createCPUGenerator(1);
  std::vector<Ids> prompts;
  for (int64_t b = 0; b < o.batch_size; ++b) {
    const Tensor ids =
        at::randint(0, model->facts().vocab_size, {o.prompt_len}, generator, at::kLong);
    prompts.emplace_back(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + o.prompt_len);
  }
  const c10::InferenceMode inference;  // as in generate()
  const auto run = [&](Spent* spent) -> std::pair<double, double> {
    Decoder decoder(*model, tp, prompts, o.new_tokens);
    tp.barrier("start of a run");
    const double start = monotonic_s();
    Ids ids = best_ids(decoder.prefill(1));
    std::optional<OpClock> clock;
    if (spent != nullptr) clock.emplace();
    const double prefilled = monotonic_s();
    for (int64_t i = 0; i < o.new_tokens; ++i) ids = best_ids(decoder.step(ids));
    const double end = monotonic_s();
    if (clock) *spent = {.kinds = clock->seconds(), .operations = clock->operations()};
    return {prefilled - start, end - prefilled};
  };
  run(nullptr);
  for (int64_t r = 0; r < o.repeats; ++r) {
    const auto [prefill_s, decode_s] = run(nullptr);
    times.prefill_s.push_back(prefill_s);
    times.decode_s.push_back(decode_s);
  }
  // A separate run: the clock adds a microsecond per operation, a large part of a token's time.
  run(&times.spent);
  times.peak_rss = peak_rss_bytes();
  times.memory_bytes_per_s = memory_speed(tp, own_bytes);
  return times;
}

}  // namespace
}  // namespace cleave::inline bench

void cleave_bench_generate(const cleave::BenchGenerateOptions& options) {
  using namespace cleave;
  const BenchShape shape = bench_shape(options.shape);
  const auto times =
      measured_by_rank_0(options, [&](World& world) { return timed(options, shape, world); });
  if (!times) return;
  const double prefill_s = median(times->prefill_s);
  const double decode_s = median(times->decode_s);
  const auto per_s = [&](int64_t tokens, double seconds) {
    return static_cast<double>(options.batch_size * tokens) / seconds;
  };
  const double products_s = times->spent.kinds[static_cast<size_t>(TimeKind::kProducts)];
  const double matrix_speed =
      static_cast<double>(times->matrix_bytes * options.new_tokens) / products_s;
  const nlohmann::ordered_json result = {
      {"bench", "generate"},
      {"shape", options.shape},
      {"tp", options.tp},
      {"dtype", options.dtype},
      {"batch_size", options.batch_size},
      {"prompt_len", options.prompt_len},
      {"new_tokens", options.new_tokens},
      {"prefill_tokens_per_s", per_s(options.prompt_len, prefill_s)},
      {"decode_tokens_per_s", per_s(options.new_tokens, decode_s)},
      {"token_ms", decode_s / static_cast<double>(options.new_tokens) * 1e3},
      {"peak_rss_bytes", times->peak_rss},
      {"matrix_bytes", times->matrix_bytes},
      {"matrix_gb_per_s", matrix_speed / 1e9},
      {"memory_gb_per_s", times->memory_bytes_per_s / 1e9},
      {"gemm", std::string(name(gemm()))},
      {"share", shares_of(times->spent)}};
  char line[300];
  std::snprintf(line, sizeof line,
                "%s, tp=%d, %s: prompt %.0f tokens/s, decoding %.1f tokens/s (%.2f ms/token), "
                "%.2f GiB\n  weights are read at %.1f GB/s; a plain sum reads memory at %.1f GB/s",
                options.shape.c_str(), options.tp, options.dtype.c_str(),
                result["prefill_tokens_per_s"].get<double>(),
                result["decode_tokens_per_s"].get<double>(), result["token_ms"].get<double>(),
                static_cast<double>(times->peak_rss) / (1 << 30), matrix_speed / 1e9,
                times->memory_bytes_per_s / 1e9);
  print_bench(options, result, line, times->spent, 1);
}
