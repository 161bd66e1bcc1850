#include "execute.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include <ATen/ATen.h>

#include "cleave/base/stop.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/file.h"
#include "cleave/mesh/job.h"
#include "cleave/text/csv.h"
#include "cleave/train/trainer.h"

namespace imdb_bert {
namespace {

using namespace cleave;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

// config.json of the notebook's model: no positions, no biases, pre-norm blocks. initializer_range
// is the standard deviation of torch's default init, U(-1/sqrt(in), 1/sqrt(in)).
std::string config_of(const ExecuteOptions& o) {
  return nlohmann::ordered_json{
      {"model_type", "imdb_bert"},
      {"hidden_size", o.dim},
      {"num_hidden_layers", o.layers},
      {"num_attention_heads", o.heads},
      {"intermediate_size", 4 * o.dim},
      {"initializer_range", 1 / std::sqrt(3.0 * static_cast<double>(o.dim))}}
      .dump(2);
}

// Quotes a CSV field (RFC 4180).
std::string quoted(const std::string& field) {
  std::string out = "\"";
  for (const char c : field) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

// Writes the first reviews of `file` to `copy` and returns its path; `file` itself if samples is 0.
std::string first_reviews(const std::string& file, int64_t samples, const fs::path& copy) {
  if (samples == 0) return file;
  CsvReader csv(file);
  const auto line = [](const std::vector<std::string>& fields) {
    std::string out;
    for (const std::string& field : fields) out += (out.empty() ? "" : ",") + quoted(field);
    return out + "\n";
  };
  std::string text = line(csv.header());
  for (int64_t i = 0; i < samples; ++i) {
    const auto fields = csv.next();
    if (!fields) break;
    text += line(*fields);
  }
  write_atomic(copy, text);
  return copy.string();
}

// A name for this process alone, since every process of a launcher writes the files that it reads.
std::string process_name(const std::string& name) {
  const auto launched = read_environment();
  return launched ? str(name, ".", launched->rank) : name;
}

TrainOptions train_options(const ExecuteOptions& o) {
  const int tp = o.tp == 0 ? o.ntasks : o.tp;
  CLEAVE_CHECK(tp >= 1 && o.ntasks % tp == 0, Code::kShape, "tp=", tp,
               " does not divide ntasks=", o.ntasks, "; the other ranks hold copies of the model");
  const fs::path out = o.out;
  CLEAVE_CHECK(o.resume || !fs::exists(out / "metrics.jsonl"), Code::kUsage, o.out,
               " already holds a run; resume it with --resume or name another folder with --out");
  fs::create_directories(out);
  const fs::path sizes = out / (process_name("sizes") + ".json");
  // The checkpoint has its own sizes; others would be ignored.
  CLEAVE_CHECK(!fs::exists(out / "latest") || !fs::exists(sizes) ||
                   read_file(sizes.string()) == config_of(o),
               Code::kUsage, "the run in ", o.out,
               " has other sizes; give the same --layers, --dim and --heads to resume it");
  write_atomic(sizes, config_of(o));
  TrainOptions train;
  train.model = sizes.string();
  train.data = {first_reviews(o.data, o.samples, out / (process_name("train") + ".csv"))};
  train.eval_data = {
      first_reviews(o.test_data, o.test_samples, out / (process_name("test") + ".csv"))};
  train.task = "classify";
  train.tokenizer = o.tokenizer_folder;
  train.out = o.out;
  train.tp = tp;
  train.dp = o.ntasks / tp;
  train.epochs = o.epochs;
  train.batch_size = o.bsz * train.dp;
  train.seq_len = o.seq_len;
  train.lr = o.lr;
  train.adam_betas[1] = 0.999;  // this and the next two are BERT's
  train.adam_eps = 1e-6;
  train.weight_decay = 0.01;
  train.dtype = o.dtype;
  train.seed = o.seed;
  train.resume = o.resume;
  return train;
}

// All ranks' values, on every rank.
std::vector<int64_t> of_all_ranks(World& world, int64_t mine) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const Axis all = world.size() == 1 ? Axis() : Axis(world.group(ranks, "ranks"));
  const std::vector<int64_t> sizes(ranks.size(), 1);
  const Tensor numbers = all.all_gather(at::full({1}, mine, at::kLong), 0, sizes, "memory");
  return {numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel()};
}

}  // namespace

Result execute(const ExecuteOptions& options) {
  const StopSignal stop;
  const TrainSetup setup = make_setup(train_options(options), launched_world_size());
  JobOptions job;
  job.num_ranks = setup.layout.num_ranks();
  job.ranks.flight_log_folder = options.out;
  job.device = setup.options.device;
  std::vector<int64_t> peaks;
  int signal = 0;
  std::mutex mutex;
  run_job(job, [&](World& world) {
    Trainer trainer(setup, world);
    const int stopped_by = trainer.run();
    const std::vector<int64_t> all = of_all_ranks(world, trainer.most_bytes());
    const std::lock_guard lock(mutex);  // ranks may be threads
    peaks = all;
    signal = stopped_by;
  });
  Result result{.signal = signal};
  for (int rank = 0; rank < setup.layout.num_ranks(); ++rank) {
    result.ranks.push_back({.rank = rank,
                            .tp_rank = rank % setup.layout.tp,
                            .dp_rank = rank / setup.layout.tp,
                            .peak_bytes = peaks[static_cast<size_t>(rank)]});
  }
  for (const StepMetrics& m : read_metrics((fs::path(options.out) / "metrics.jsonl").string())) {
    result.seconds += m.step_ms / 1e3;
    result.accuracy = m.eval_accuracy.value_or(result.accuracy);
  }
  return result;
}

std::string table(const Result& result) {
  std::string text = "rank  tp rank  dp rank      memory       time  accuracy\n";
  for (const RankResult& r : result.ranks) {
    char line[96];
    (void)std::snprintf(line, sizeof line, "%4d  %7d  %7d  %6.1f MiB  %7.1f s    %.4f\n", r.rank,
                        r.tp_rank, r.dp_rank, static_cast<double>(r.peak_bytes) / (1 << 20),
                        result.seconds, result.accuracy);
    text += line;
  }
  return text;
}

}  // namespace imdb_bert
