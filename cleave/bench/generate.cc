#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/base/median.h"
#include "cleave/base/resource_limits.h"
#include "cleave/base/str.h"
#include "cleave/bench/limits.h"
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
  Spent prompt, spent;                      // of prefill and of decoding, in a separate run
  MachineLimit prompt_limit, decode_limit;  // of one run; without products if they are quantized
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
    if (is_int4 && linear->least_bits() == 4) {
      // fp16 scales, and minimums, of the groups
      bytes += count / 2 + count / kInt4Group * (form == WeightForm::kInt4 ? 4 : 2);
    } else {
      bytes +=
          count * (form == WeightForm::kPlain ? item_bytes(dtype_from_name(dtype).value()) : 1);
    }
  });
  return bytes;
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
  set_kv_cache_dtype(*model, o.kv_cache_dtype);
  const at::Generator generator = at::detail::createCPUGenerator(1);
  std::vector<Ids> prompts;
  for (int64_t b = 0; b < o.batch_size; ++b) {
    const Tensor ids =
        at::randint(0, model->facts().vocab_size, {o.prompt_len}, generator, at::kLong);
    prompts.emplace_back(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + o.prompt_len);
  }
  const c10::InferenceMode inference;  // as in generate()
  const auto run = [&](bool profiled) -> std::pair<double, double> {
    Decoder decoder(*model, tp, prompts, o.new_tokens);
    tp.barrier("start of a run");
    std::optional<OpClock> clock;
    if (profiled) clock.emplace();
    const double start = monotonic_s();
    Ids ids = best_ids(decoder.prefill(1));
    if (profiled) times.prompt = spent_of(*clock);
    clock.reset();
    if (profiled) clock.emplace();
    const double prefilled = monotonic_s();
    for (int64_t i = 0; i < o.new_tokens; ++i) ids = best_ids(decoder.step(ids));
    const double end = monotonic_s();
    if (profiled) times.spent = spent_of(*clock);
    return {prefilled - start, end - prefilled};
  };
  run(false);
  for (int64_t r = 0; r < o.repeats; ++r) {
    const auto [prefill_s, decode_s] = run(false);
    times.prefill_s.push_back(prefill_s);
    times.decode_s.push_back(decode_s);
  }
  // A separate run: the clock adds a microsecond per operation, a large part of a token's time.
  run(true);
  times.peak_rss = peak_rss_bytes();
  times.memory_bytes_per_s = memory_speed(tp, own_bytes);
  const at::ScalarType type = is_plain ? scalar_type(dtype_from_name(o.dtype).value()) : at::kFloat;
  if (!is_plain) {
    times.prompt.products.clear();
    times.spent.products.clear();
  }
  times.prompt_limit = measure_limit(tp, times.prompt.products, type);
  times.decode_limit = measure_limit(tp, times.spent.products, type);
  return times;
}

/// Seconds that the machine needs at best for the prompts and for one token of each sequence.
struct Bounds {
  double prompt_s = 0;  ///< 0 for quantized weights, whose products have no other library
  double token_s = 0;
};

Bounds bounds_of(const GenerateTimes& times, int64_t new_tokens) {
  const auto with_calls = [](const MachineLimit& limit, double seconds, const Spent& spent) {
    return seconds + static_cast<double>(collective_calls(spent)) * limit.all_reduce_s;
  };
  // A token needs all matrices once, and the products of its sequences.
  const double read_s =
      static_cast<double>(times.matrix_bytes * new_tokens) / times.memory_bytes_per_s;
  const double decode_s =
      with_calls(times.decode_limit, std::max(read_s, times.decode_limit.products_s), times.spent);
  const double prompt_s = times.prompt_limit.products_s;
  return {.prompt_s = prompt_s == 0 ? 0 : with_calls(times.prompt_limit, prompt_s, times.prompt),
          .token_s = decode_s / static_cast<double>(new_tokens)};
}

nlohmann::ordered_json result_of(const BenchGenerateOptions& options, const GenerateTimes& times) {
  const double prefill_s = median(times.prefill_s);
  const double decode_s = median(times.decode_s);
  const auto per_s = [&](int64_t tokens, double seconds) {
    return static_cast<double>(options.batch_size * tokens) / seconds;
  };
  const double products_s = times.spent.kinds[static_cast<size_t>(TimeKind::kProducts)];
  const double token_s = decode_s / static_cast<double>(options.new_tokens);
  const Bounds bounds = bounds_of(times, options.new_tokens);
  nlohmann::ordered_json result = {
      {"bench", "generate"},
      {"shape", options.shape},
      {"tp", options.tp},
      {"dtype", options.dtype},
      {"kv_cache_dtype", options.kv_cache_dtype},
      {"batch_size", options.batch_size},
      {"prompt_len", options.prompt_len},
      {"new_tokens", options.new_tokens},
      {"prefill_tokens_per_s", per_s(options.prompt_len, prefill_s)},
      {"decode_tokens_per_s", per_s(options.new_tokens, decode_s)},
      {"token_ms", token_s * 1e3},
      {"peak_rss_bytes", times.peak_rss},
      {"matrix_bytes", times.matrix_bytes},
      {"matrix_gb_per_s",
       static_cast<double>(times.matrix_bytes * options.new_tokens) / products_s / 1e9},
      {"memory_gb_per_s", times.memory_bytes_per_s / 1e9},
      {"all_reduce_us", times.decode_limit.all_reduce_s * 1e6},
      {"decode_share_of_limit", bounds.token_s / token_s},
      {"gemm", std::string(name(gemm()))},
      {"share", shares_of(times.spent)}};
  if (bounds.prompt_s > 0) result["prefill_share_of_limit"] = bounds.prompt_s / prefill_s;
  return result;
}

}  // namespace
}  // namespace cleave::inline bench

void cleave_bench_generate(const cleave::BenchGenerateOptions& options) {
  using namespace cleave;  // NOLINT(google-build-using-namespace)
  const BenchShape shape = bench_shape(options.shape);
  const auto times =
      measured_by_rank_0(options, [&](World& world) { return timed(options, shape, world); });
  if (!times) return;
  const nlohmann::ordered_json result = result_of(options, *times);
  const auto number = [&](const char* key) { return result[key].get<double>(); };
  const std::string prompt =
      result.contains("prefill_share_of_limit")
          ? str("the prompt reaches ", percent(number("prefill_share_of_limit"), 1), ", ")
          : "";
  char line[500];
  (void)std::snprintf(
      line, sizeof line,
      "%s, tp=%d, %s: prompt %.0f tokens/s, decoding %.1f tokens/s (%.2f ms/token), "
      "%.2f GiB\n"
      "  weights are read at %.1f GB/s; a plain sum reads memory at %.1f GB/s\n"
      "  of this machine's limit, measured just now, %sdecoding reaches %s",
      options.shape.c_str(), options.tp, options.dtype.c_str(), number("prefill_tokens_per_s"),
      number("decode_tokens_per_s"), number("token_ms"),
      static_cast<double>(times->peak_rss) / (1 << 30), number("matrix_gb_per_s"),
      number("memory_gb_per_s"), prompt.c_str(),
      percent(number("decode_share_of_limit"), 1).c_str());
  print_bench(options, result, line, times->spent, 1);
}
