// Combinations of the options of `train`: the rows of a covering array that contains every allowed
// pair of values (every triple with CLEAVE_TEST_LEVEL=full). Each row is compared with one rank
// that runs libtorch's plain kernels. The bounds are those of tests/support/rounding.h: the
// distance of that rank from the same run in fp64. For fp64 there is no wider type: its bounds are
// those of fp32 times 2^-29, the ratio of the rounding errors.
#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/log.h"
#include "cleave/report/metrics.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/train/options.h"
#include "tests/support/covering_array.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"
#include "tests/support/rounding.h"
#include "tests/support/temp_folder.h"

namespace cleave::covering_test {
namespace {

using test::ArrayRow;
using test::CoveringArray;
using test::Factor;
using test::kOpen;
using test::rounding_bound;
using test::TempFolder;
using test::unit_roundoff;

enum Place : size_t {
  kFamily,
  kType,
  kTp,
  kPp,
  kDp,
  kSharding,
  kSequence,
  kRecompute,
  kSchedule,
  kVirtual,
  kMicro,
  kPlain,
  kGemm,
  kOptimizer,
  kClip,
  kRanks,
  kSave,
  kEval,
  kNumPlaces
};

/// Empty values are the default: the flag is omitted.
std::vector<Factor> factors() {
  return {{"model", {"llama", "gpt2", "bert"}},
          {"dtype", {"fp32", "bf16", "fp16", "fp64"}},
          {"tp", {"1", "2", "3"}},
          {"pp", {"1", "2"}},
          {"dp", {"1", "2"}},
          {"sharding", {"none", "zero", "fsdp"}},
          {"sequence-parallel", {"off", "on"}},
          {"recompute", {"none", "full", "selective"}},
          {"schedule-pp", {"", "gpipe", "1f1b", "interleaved", "zero-bubble"}},
          {"virtual-pipeline", {"1", "2"}},
          {"micro-batch-size", {"", "1", "3"}},
          {"plain-kernels", {"", "all", "attention,loss,adam"}},
          {"gemm", {"mkl", "onednn"}},
          {"optimizer", {"adamw", "adam", "sgd", "muon"}},
          {"clip", {"0", "0.5"}},
          {"ranks", {"threads", "processes"}},
          {"save", {"end", "every", "async"}},
          {"eval", {"none", "end", "every"}}};
}

const std::string& value(const ArrayRow& row, Place place) {
  static const std::vector<Factor> all = factors();
  return all[place].values[static_cast<size_t>(row[place])];
}

int number(const ArrayRow& row, Place place) {
  return std::stoi(value(row, place));
}

constexpr int64_t kBatch = 4;

/// Whether the program accepts the values chosen so far. docs/layouts.md lists the combinations
/// that it refuses; refused_test.py checks that list.
bool is_accepted(const ArrayRow& row) {
  const auto is = [&](Place place, const char* text) {
    return row[place] != kOpen && value(row, place) == text;
  };
  if (is(kSchedule, "1f1b") && is(kVirtual, "2")) return false;
  return !(is(kMicro, "3") && is(kDp, "2"));  // a dp rank has 2 sequences
}

/// Whether a row is run: at most 6 processes, since each loads the library.
bool is_run(const ArrayRow& row) {
  if (!is_accepted(row)) return false;
  if (row[kRanks] == kOpen || value(row, kRanks) == "threads") return true;
  int ranks = 1;
  for (const Place place : {kTp, kPp, kDp}) ranks *= row[place] == kOpen ? 1 : number(row, place);
  return ranks <= 6;
}

std::string describe(const ArrayRow& row) {
  static const std::vector<Factor> all = factors();
  std::string text;
  for (size_t f = 0; f < row.size(); ++f) {
    text += str(f == 0 ? "" : " ", all[f].name, "=", value(row, static_cast<Place>(f)));
  }
  return text;
}

/// Four layers; heads of 16, a size that Cleave's attention kernel supports.
const std::map<std::string, std::string> kConfigs = {
    {"llama", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":96,
"intermediate_size":20,"num_hidden_layers":4,"num_attention_heads":6,"num_key_value_heads":2,
"head_dim":16,"max_position_embeddings":32,"tie_word_embeddings":true,
"initializer_range":0.1})"},
    {"gpt2", R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","n_embd":96,"n_inner":20,
"n_layer":4,"n_head":6,"n_positions":32,"attn_pdrop":0.1,"resid_pdrop":0.1,"embd_pdrop":0.1,
"initializer_range":0.1})"},
    {"bert", R"({"architectures":["BertForMaskedLM"],"model_type":"bert","hidden_size":96,
"intermediate_size":20,"num_hidden_layers":4,"num_attention_heads":6,
"max_position_embeddings":32,"type_vocab_size":2,"attention_probs_dropout_prob":0.1,
"hidden_dropout_prob":0.1,"initializer_range":0.1})"}};

/// Rows of 5 to 12 ids, so that batches are padded. Every third position has no label.
void write_rows(const std::string& path) {
  std::ofstream file(path);
  for (int row = 0; row < 16; ++row) {
    std::string ids, labels;
    for (int i = 0; i < 5 + row % 8; ++i) {
      const char* comma = i == 0 ? "" : ",";
      ids += str(comma, (row * 37 + i * 11) % 250);
      labels += str(comma, (row + i) % 3 == 0 ? -100 : (row * 13 + i * 29) % 250);
    }
    file << R"({"input_ids":[)" << ids << R"(],"labels":[)" << labels << "]}\n";
  }
}

/// The values of a run that are compared.
struct Result {
  std::vector<double> losses, norms, eval_losses;  // by step
  std::map<std::string, Tensor> weights;           // after the last
};

/// Runs rows in a temporary folder and caches the results of one rank.
class Bench {
 public:
  Bench() {
    for (const auto& [family, config] : kConfigs) {
      std::ofstream(folder_ / (family + ".json")) << config;
    }
    write_rows(folder_ / "rows.jsonl");
  }

  /// Runs a row.
  Result run(const ArrayRow& row) {
    TrainOptions o = options_of(row);
    if (value(row, kRanks) == "threads") return run_here(o);
    return run_as_processes(o, number(row, kTp) * number(row, kPp) * number(row, kDp));
  }
  /// The run that a row is compared with. Only options that change its numbers are set.
  const Result& on_one_rank(const ArrayRow& row, const std::string& type) {
    const TrainOptions like = options_of(row);
    const std::string key = str(like.model, type, like.optimizer, like.clip);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    TrainOptions o;
    o.model = like.model;
    o.data = o.eval_data = like.data;
    o.eval_every = 1;
    o.dtype = type;
    o.plain_kernels = "all";
    o.optimizer = like.optimizer;
    o.clip = like.clip;
    set_sizes(o);
    return known_.emplace(key, run_here(o)).first->second;
  }

 private:
  static void set_sizes(TrainOptions& o) {
    o.steps = 3;
    o.batch_size = kBatch;
    o.seq_len = 16;
    o.lr = 1e-2;
    o.schedule = "constant";
    o.warmup = 0;
    o.adam_eps = 1e-2;  // the size of gradients; with less, rounding decides the sign of a step
    o.gemm = o.gemm == "auto" ? "mkl" : o.gemm;
    o.threads_per_rank = 1;
    o.timeout_s = 30;
  }
  TrainOptions options_of(const ArrayRow& row) {
    TrainOptions o;
    o.model = folder_ / (value(row, kFamily) + ".json");
    o.data = {folder_ / "rows.jsonl"};
    o.dtype = value(row, kType);
    o.tp = number(row, kTp);
    o.pp = number(row, kPp);
    o.dp = number(row, kDp);
    o.zero = value(row, kSharding) == "zero" ? 1 : 0;
    o.fsdp = value(row, kSharding) == "fsdp";
    o.sequence_parallel = value(row, kSequence) == "on";
    o.recompute = value(row, kRecompute);
    o.schedule_pp = value(row, kSchedule);
    o.virtual_pipeline = number(row, kVirtual);
    o.micro_batch_size = value(row, kMicro).empty() ? 0 : number(row, kMicro);
    o.plain_kernels = value(row, kPlain);
    o.gemm = value(row, kGemm);
    o.optimizer = value(row, kOptimizer);
    o.clip = std::stod(value(row, kClip));
    o.save_every = value(row, kSave) == "end" ? 0 : 1;
    o.async_save = value(row, kSave) == "async";
    if (value(row, kEval) != "none") o.eval_data = o.data;
    o.eval_every = value(row, kEval) == "every" ? 1 : 0;
    set_sizes(o);
    return o;
  }

  Result run_here(TrainOptions o) {
    o.out = next_out();
    ::testing::internal::CaptureStdout();
    try {
      cleave_train(o);
    } catch (...) {
      (void)::testing::internal::GetCapturedStdout();
      set_plain_kernels("");
      throw;
    }
    (void)::testing::internal::GetCapturedStdout();
    set_plain_kernels("");
    return result_of(o.out);
  }
  Result run_as_processes(TrainOptions o, int num_ranks) {
    o.out = next_out();
    std::vector<std::string> words{"launch", "-n", str(num_ranks), "--", test::program()};
    for (const std::string& word : words_of(o)) words.push_back(word);
    const test::RunResult ran = test::run_cleave(words);
    CLEAVE_CHECK(ran.exit_code == 0, Code::kBug, "exit code ", ran.exit_code, ": ", ran.err);
    return result_of(o.out);
  }
  static std::vector<std::string> words_of(const TrainOptions& o) {
    std::vector<std::string> words{"train"};
    const auto add = [&](const std::string& flag, const std::string& text) {
      if (!text.empty()) words.insert(words.end(), {"--" + flag, text});
    };
    add("model", o.model), add("data", o.data[0]), add("out", o.out), add("dtype", o.dtype);
    add("tp", str(o.tp)), add("pp", str(o.pp)), add("dp", str(o.dp));
    add("zero", str(o.zero)), add("recompute", o.recompute), add("schedule-pp", o.schedule_pp);
    add("virtual-pipeline", str(o.virtual_pipeline)), add("plain-kernels", o.plain_kernels);
    if (o.micro_batch_size > 0) add("micro-batch-size", str(o.micro_batch_size));
    add("gemm", o.gemm), add("optimizer", o.optimizer), add("clip", str(o.clip));
    add("save-every", str(o.save_every)), add("steps", str(*o.steps));
    add("batch-size", str(o.batch_size)), add("seq-len", str(o.seq_len)), add("lr", str(o.lr));
    add("schedule", o.schedule), add("warmup", str(*o.warmup)), add("adam-eps", str(o.adam_eps));
    add("threads-per-rank", str(o.threads_per_rank)), add("timeout", str(o.timeout_s));
    if (!o.eval_data.empty())
      add("eval-data", o.eval_data[0]), add("eval-every", str(o.eval_every));
    if (o.fsdp) words.emplace_back("--fsdp");
    if (o.sequence_parallel) words.emplace_back("--sequence-parallel");
    if (o.async_save) words.emplace_back("--async-save");
    return words;
  }

  static Result result_of(const std::string& out) {
    Result result;
    for (const StepMetrics& step : read_metrics(out + "/metrics.jsonl")) {
      result.losses.push_back(step.loss);
      result.norms.push_back(step.grad_norm);
      result.eval_losses.push_back(step.eval_loss.value_or(NAN));
    }
    std::string latest;
    std::ifstream(out + "/latest") >> latest;
    for (const auto& [name, tensor] : test::read_tensors(out + "/" + latest)) {
      result.weights[name] = tensor.to(at::kDouble);
    }
    std::filesystem::remove_all(out);
    return result;
  }
  std::string next_out() { return folder_ / str("run", num_runs_++); }

  TempFolder folder_;
  int num_runs_ = 0;
  std::map<std::string, Result> known_;
};

double largest(const Tensor& t) {
  return t.numel() == 0 ? 0 : t.abs().max().item<double>();
}

/// Three results of the same training: `have` of a row, `plain` of one rank in the same type, and
/// `exact` of one rank in fp64. For a row in fp64, `exact` is in fp32 and bounds are multiplied by
/// `scale`.
struct Compared {
  const Result &have, &plain, &exact;
  at::ScalarType type;
  double scale;

  void expect(double got, double want, double precise, const std::string& what) const {
    if (std::isnan(got) && what.starts_with("eval")) return;  // not evaluated after this step
    const double stored = unit_roundoff(type) * std::abs(precise);
    const double bound = scale * rounding_bound(std::abs(want - precise), stored);
    EXPECT_LE(std::abs(got - want), bound) << what << ": " << got << ", on one rank " << want;
  }
  void expect_all() const {
    ASSERT_EQ(have.losses.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      const auto step = str(" of step ", i + 1);
      expect(have.losses[i], plain.losses[i], exact.losses[i], "loss" + step);
      expect(have.norms[i], plain.norms[i], exact.norms[i], "norm" + step);
      expect(have.eval_losses[i], plain.eval_losses[i], exact.eval_losses[i], "eval" + step);
    }
    EXPECT_EQ(have.weights.size(), plain.weights.size());
    for (const auto& [name, want] : plain.weights) {
      const Tensor& precise = exact.weights.at(name);
      const double stored = unit_roundoff(type) * largest(precise);
      const double bound = scale * rounding_bound(largest(want - precise), stored);
      EXPECT_LE(largest(have.weights.at(name) - want), bound) << name;
    }
  }
};

at::ScalarType type_of(const std::string& dtype) {
  if (dtype == "bf16") return at::kBFloat16;
  return dtype == "fp16" ? at::kHalf : at::kFloat;
}

void expect_as_one_rank(Bench& bench, const ArrayRow& row) {
  SCOPED_TRACE(describe(row));
  const std::string& dtype = value(row, kType);
  const bool is_double = dtype == "fp64";
  const Result& plain = bench.on_one_rank(row, dtype);
  const Result& other = bench.on_one_rank(row, is_double ? "fp32" : "fp64");
  try {
    const Result have = bench.run(row);
    Compared{have, plain, other, type_of(dtype), is_double ? 0x1p-29 : 1}.expect_all();
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

/// Runs every num_parts-th row from row `part` on, so that parts can run in parallel.
void run_part(size_t strength, size_t part, size_t num_parts) {
  CoveringArray array(factors(), strength, is_run);
  const std::vector<ArrayRow> rows = array.rows();
  log_info("covering array of strength ", strength, ": ", rows.size(), " rows, ",
           array.num_combinations(), " combinations");
  Bench bench;
  for (size_t i = part; i < rows.size(); i += num_parts) expect_as_one_rank(bench, rows[i]);
}

constexpr int kPairParts = 6, kTripleParts = 12;

class CoveringPairs : public testing::TestWithParam<int> {};
TEST_P(CoveringPairs, EveryPairOfValues_TrainsAsOneRankOfLibtorchDoes) {
  run_part(2, static_cast<size_t>(GetParam()), kPairParts);
}
INSTANTIATE_TEST_SUITE_P(Part, CoveringPairs, testing::Range(0, kPairParts));

class CoveringTriples : public testing::TestWithParam<int> {};
TEST_P(CoveringTriples, EveryTripleOfValues_TrainsAsOneRankOfLibtorchDoes) {
  run_part(3, static_cast<size_t>(GetParam()), kTripleParts);
}
INSTANTIATE_TEST_SUITE_P(Full, CoveringTriples, testing::Range(0, kTripleParts));

// Muon lets the rounding of small singular values grow, in bf16 to the size of its update, and the
// bounds with it. Even so, most tensors of a run that took AdamW for Muon would exceed them: at
// least 19 of 38, and 36 of 38 in the other types.
TEST(CoveringBounds, OfMuon_TellItFromAdamW) {
  Bench bench;
  ArrayRow row(kNumPlaces, 0);
  for (int family = 0; family < 3; ++family) {
    row[kFamily] = family;
    for (const char* const type : {"fp32", "bf16", "fp16"}) {
      row[kOptimizer] = 3;
      ASSERT_EQ(value(row, kOptimizer), "muon");
      const Result& plain = bench.on_one_rank(row, type);
      const Result& exact = bench.on_one_rank(row, "fp64");
      row[kOptimizer] = 0;
      const Result& adamw = bench.on_one_rank(row, "fp64");
      size_t num_found = 0;
      for (const auto& [name, want] : exact.weights) {
        const double stored = unit_roundoff(type_of(type)) * largest(want);
        const double bound = rounding_bound(largest(plain.weights.at(name) - want), stored);
        if (largest(adamw.weights.at(name) - want) > bound) ++num_found;
      }
      const double least_share = std::string(type) == "bf16" ? 0.4 : 0.9;
      EXPECT_GE(static_cast<double>(num_found),
                least_share * static_cast<double>(exact.weights.size()))
          << value(row, kFamily) << " " << type;
    }
  }
}

/// Refused values of two factors. The pairs have no factor in common, so three factors have one
/// pair at most.
struct RefusedPair {
  size_t a, b, count;
};
constexpr std::array kRefusedPairs{RefusedPair{kSchedule, kVirtual, 1},
                                   RefusedPair{kDp, kMicro, 1}};

/// The number of allowed combinations of the values of some factors, in closed form.
size_t num_allowed(const std::vector<Factor>& all, const std::vector<size_t>& chosen) {
  size_t product = 1;
  for (const size_t f : chosen) product *= all[f].values.size();
  const auto has = [&](size_t f) {
    return std::find(chosen.begin(), chosen.end(), f) != chosen.end();
  };
  for (const auto& [a, b, count] : kRefusedPairs) {
    if (!has(a) || !has(b)) continue;
    return product - product / (all[a].values.size() * all[b].values.size()) * count;
  }
  return product;
}

/// Expects that rows have all allowed combinations of the values of some factors; returns their
/// number.
size_t expect_combinations(const std::vector<ArrayRow>& rows, const std::vector<size_t>& chosen) {
  const std::vector<Factor> all = factors();
  std::set<std::vector<int>> seen;
  for (const ArrayRow& row : rows) {
    std::vector<int> values;
    for (const size_t f : chosen) values.push_back(row[f]);
    seen.insert(values);
  }
  EXPECT_EQ(seen.size(), num_allowed(all, chosen))
      << all[chosen[0]].name << ", " << all[chosen[1]].name << ", " << all[chosen.back()].name;
  return seen.size();
}

/// Expects that the rows of an array have every allowed combination, and that the array counts
/// them.
void expect_rows(size_t strength, size_t most_rows) {
  CoveringArray array(factors(), strength, is_run);
  const std::vector<ArrayRow> rows = array.rows();
  EXPECT_TRUE(std::all_of(rows.begin(), rows.end(), is_run));
  size_t count = 0;
  for (size_t a = 0; a < kNumPlaces; ++a) {
    for (size_t b = a + 1; b < kNumPlaces; ++b) {
      if (strength == 2) count += expect_combinations(rows, {a, b});
      for (size_t c = b + 1; strength == 3 && c < kNumPlaces; ++c) {
        count += expect_combinations(rows, {a, b, c});
      }
    }
  }
  EXPECT_EQ(array.num_combinations(), count);
  EXPECT_LT(rows.size(), most_rows);
}

TEST(CoveringArrayOfTrain, Rows_HaveEveryAllowedPair) {
  expect_rows(2, 60);
}

TEST(CoveringArrayOfTrainFull, Rows_HaveEveryAllowedTriple) {
  expect_rows(3, 400);
}

}  // namespace
}  // namespace cleave::covering_test
