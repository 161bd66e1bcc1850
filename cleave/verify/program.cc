#include <filesystem>
#include <nlohmann/json.hpp>

#include "cleave/base/hash.h"
#include "cleave/base/log.h"
#include "cleave/base/progress.h"
#include "cleave/comm/bootstrap/first_rank.h"
#include "cleave/file/file.h"
#include "cleave/file/model_path.h"
#include "cleave/mesh/cuda.h"
#include "cleave/mesh/job.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/planner/machine.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/train/fingerprint.h"
#include "cleave/verify/fuzz.h"
#include "cleave/verify/options.h"
#include "cleave/verify/verify.h"

namespace cleave::inline verify {
namespace {

using Object = nlohmann::ordered_json;

/// Vocabulary of presets: bytes and one more, a prime.
constexpr int64_t kVocabulary = 257;

/// The model and settings, derived from the options.
struct Work {
  Json config;
  VerifySettings settings;
};

int tp_of(const VerifyOptions& options) {
  if (options.tp > 0) return options.tp;
  const int launched = launched_world_size();
  return launched > 0 ? std::max(1, launched / options.dp) : 2;
}

/// The compute type in a config.json; training writes it there.
std::string dtype_of_config(const Json& config) {
  return config.string_or("dtype", config.string_or("torch_dtype", ""));
}

/// Whether --model is a config.json: a model without weights, as for train.
bool is_config(const VerifyOptions& options) {
  const std::filesystem::path path = options.model;
  return path.extension() == ".json" && !std::filesystem::is_directory(path);
}

/// A config.json; without a vocabulary it gets that of presets.
Json read_config(const std::string& path) {
  Json config = Json::parse_file(path);
  if (config.has("vocab_size")) return config;
  auto json = Object::parse(config.dump());
  json["vocab_size"] = kVocabulary;
  return Json::parse(json.dump(), path);
}

/// The type of a flag or a config.json; fp32, training's default, if empty.
at::ScalarType type_of(const std::string& text) {
  const auto dtype = dtype_from_name(text.empty() ? "fp32" : text);
  const bool is_float =
      dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF64;
  CLEAVE_CHECK(is_float, Code::kUsage, "dtype ", text,
               " cannot be verified; give --dtype fp32, bf16, fp16 or fp64");
  return scalar_type(*dtype);
}

Work work_of(const VerifyOptions& options) {
  CLEAVE_CHECK(
      device_of(options.device).is_cpu() || options.fuzz == 0, Code::kUsage, "--device ",
      options.device,
      " does not work with --fuzz, which starts ranks as threads (ranks on GPUs are processes); "
      "choose cpu");
  VerifySettings settings{.tp = tp_of(options),
                          .dp = options.dp,
                          .ep = options.ep,
                          .sequence_parallel = options.sequence_parallel,
                          .dtype = type_of(options.dtype),
                          .seed = options.seed,
                          .layer = options.layer,
                          .threads_per_rank = options.threads_per_rank,
                          .timeout_s = options.timeout_s,
                          .transport = options.transport,
                          .fast_sums = options.fast_sums,
                          .device = options.device};
  if (!options.plan.empty()) settings.plan = read_plan(options.plan);
  if (is_config(options)) {
    const Json config = read_config(options.model);
    if (options.dtype.empty()) settings.dtype = type_of(dtype_of_config(config));
    return {.config = config, .settings = settings};
  }
  if (!std::filesystem::exists(options.model) && !is_hub_name(options.model)) {
    return {.config = preset_config(options.model, kVocabulary), .settings = settings};
  }
  const ModelFolder folder = ModelFolder::open(options.model);
  if (options.dtype.empty()) settings.dtype = type_of(dtype_of_config(folder.config));
  if (options.fuzz == 0) settings.weights = folder;
  return {.config = folder.config, .settings = settings};
}

/// The settings that all ranks of a launcher must share. Paths may differ.
ConfigFingerprint fingerprint_of(const VerifyOptions& options, const Work& work) {
  VerifyOptions used = options;
  used.tp = work.settings.tp;
  used.dtype = std::string(name(dtype_of(work.settings.dtype)));
  ConfigFingerprint fingerprint = option::matching(option::sections(used));
  fingerprint.emplace_back("--plan with checksum",
                           options.plan.empty() ? "" : to_hex(hash_bytes(read_file(options.plan))));
  add_config(fingerprint, work.config);
  if (work.settings.weights) add_weights(fingerprint, *work.settings.weights);
  return fingerprint;
}

/// The command that repeats one random configuration.
std::string repeat_command(const VerifyOptions& options, int tp, uint64_t seed) {
  std::string line = str("cleave verify --model ", options.model, " --tp ", tp);
  if (options.dp > 1) line += str(" --dp ", options.dp);
  if (options.ep > 1) line += str(" --ep ", options.ep);
  if (!options.plan.empty()) line += str(" --plan ", options.plan);
  if (!options.dtype.empty()) line += str(" --dtype ", options.dtype);
  return line + str(" --fuzz 1 --seed ", seed);
}

VerifyReport run_case(const FuzzCase& fuzz, const Work& work, uint64_t seed) {
  VerifySettings settings = work.settings;
  settings.tp = fuzz.tp;
  settings.seed = seed;
  settings.sequence_parallel = fuzz.sequence_parallel && !settings.plan;
  return verify_model([&] { return make_model(fuzz.config); }, settings);
}

void print_failed_case(const VerifyOptions& options, const FuzzCase& fuzz, int64_t number,
                       const VerifyReport& report, const std::string& line) {
  if (options.json) {
    Object out = {{"configurations", number},
                  {"agrees", false},
                  {"configuration", describe(fuzz)},
                  {"again", line},
                  {"report", Object::parse(report_json(report, options.model))}};
    log_info(out.dump());
    return;
  }
  log_info(report_text(report), "configuration ", number, ": ", describe(fuzz),
           "\nrepeat with: ", line);
}

/// Verifies random configurations until one differs.
int run_fuzz(const VerifyOptions& options, const Work& work) {
  CLEAVE_CHECK(launched_world_size() == 0, Code::kUsage,
               "--fuzz starts the ranks of each configuration itself; run it without a launcher");
  std::optional<Progress> progress;
  if (!options.json) {
    progress.emplace(ProgressOptions{.total = options.fuzz, .unit = "configuration"});
  }
  for (int64_t i = 0; i < options.fuzz; ++i) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(i);
    const FuzzCase fuzz = fuzz_case(work.config, work.settings.tp, seed);
    const std::string line = repeat_command(options, work.settings.tp, seed);
    VerifyReport report;
    try {
      report = run_case(fuzz, work, seed);
    } catch (const Error&) {
      log_error("configuration ", i + 1, ": ", describe(fuzz), "; repeat with: ", line);
      throw;
    }
    if (report.first_difference() != nullptr) {
      progress.reset();
      print_failed_case(options, fuzz, i + 1, report, line);
      return static_cast<int>(Code::kNumerics);
    }
    if (progress) progress->update(i + 1);
  }
  progress.reset();
  if (options.json) {
    log_info(Object{{"configurations", options.fuzz}, {"agrees", true}}.dump());
  } else {
    log_info(counted(options.fuzz, "random configuration"), " of ", options.model,
             ": each sharded model matches the model on one rank");
  }
  return 0;
}

}  // namespace
}  // namespace cleave::inline verify

int cleave_verify(const cleave::VerifyOptions& options) {
  cleave::set_plain_kernels(options.plain_kernels);
  using namespace cleave;  // NOLINT(google-build-using-namespace)
  Work work = read_from(folders_of({options.model}), [&] { return work_of(options); });
  choose_gemm(options.gemm, Axis());
  if (options.fuzz > 0) return run_fuzz(options, work);
  if (is_config(options) && !options.json && is_first_rank()) {
    log_info("the weights are random: ", options.model, " has none");
  }
  if (launched_world_size() > 0) work.settings.fingerprint = fingerprint_of(options, work);
  const VerifyReport report = verify_model([&] { return make_model(work.config); }, work.settings);
  if (is_first_rank()) {
    const std::string text =
        options.json ? report_json(report, options.model) : report_text(report);
    log_info(options.json ? text : text.substr(0, text.size() - 1));
  }
  return report.first_difference() == nullptr ? 0 : static_cast<int>(Code::kNumerics);
}
