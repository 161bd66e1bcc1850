#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/base/peak_rss.h"
#include "cleave/bench/run.h"
#include "cleave/bench/shapes.h"
#include "cleave/bench/timing.h"
#include "cleave/generate/decoder.h"
#include "cleave/generate/rank_weights.h"
#include "cleave/kernels/cpu/gemm.h"
#include "cleave/mesh/mesh.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/parallel/plan.h"

namespace cleave {
namespace {

struct GenerateTimes {
  std::vector<double> prefill_s, decode_s;  // of a run
  Spent spent;                              // of all runs' decoding
};

/// The likeliest id of every row.
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
  const bool is_int8 = o.dtype == "int8";
  materialize(*model,
              {.dtype = is_int8 ? at::kFloat : scalar_type(dtype_from_name(o.dtype).value())});
  prepare_weights(*model, is_int8);
  const at::Generator generator = at::detail::createCPUGenerator(1);
  std::vector<Ids> prompts;
  for (int64_t b = 0; b < o.batch_size; ++b) {
    const Tensor ids =
        at::randint(0, model->facts().vocab_size, {o.prompt_len}, generator, at::kLong);
    prompts.emplace_back(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + o.prompt_len);
  }
  GenerateTimes times;
  const c10::InferenceMode inference;  // as in generate()
  const auto run = [&] {
    Decoder decoder(*model, tp, prompts, o.new_tokens);
    tp.barrier("start of a run");
    const double start = monotonic_s();
    Ids ids = best_ids(decoder.prefill(1));
    const double prefilled = monotonic_s();
    for (int64_t i = 0; i < o.new_tokens; ++i) ids = best_ids(decoder.step(ids));
    times.prefill_s.push_back(prefilled - start);
    times.decode_s.push_back(monotonic_s() - prefilled);
  };
  run();
  times = {};
  const OpClock clock;
  for (int64_t r = 0; r < o.repeats; ++r) run();
  times.spent = {.kinds = clock.seconds(), .operations = clock.operations()};
  return times;
}

}  // namespace
}  // namespace cleave

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
      {"peak_rss_bytes", peak_rss_bytes()},
      {"gemm", std::string(name(gemm()))},
      {"share", shares_of(times->spent)}};
  char line[200];
  std::snprintf(line, sizeof line,
                "%s, tp=%d, %s: prompt %.0f tokens/s, decoding %.1f tokens/s (%.2f ms a token), "
                "%.2f GiB",
                options.shape.c_str(), options.tp, options.dtype.c_str(),
                result["prefill_tokens_per_s"].get<double>(),
                result["decode_tokens_per_s"].get<double>(), result["token_ms"].get<double>(),
                static_cast<double>(peak_rss_bytes()) / (1 << 30));
  print_bench(options, result, line, times->spent, options.repeats);
}
