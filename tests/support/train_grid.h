#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/checkpoint/load.h"
#include "cleave/checkpoint/save.h"
#include "cleave/train/rank_model.h"
#include "tests/support/ranks.h"

namespace cleave::test {

inline constexpr int64_t kGridVocab = 23, kGridRows = 5, kGridTokens = 7, kGridSteps = 3;
inline constexpr double kGridRate = 1e-2;

/// A layout of the grid: the values of its dimensions.
struct Point {
  int tp = 1, sp = 0, pp = 1, virtual_stages = 1, dp = 1, sharding = 0;
  ScheduleKind schedule = ScheduleKind::k1F1B;  // if there is one stage per rank
  RecomputeKind recompute = RecomputeKind::kNone;
  // Not of the grid's dimensions.
  int ep = 1;
  HeadLossOptions head_loss{};

  [[nodiscard]] std::vector<int> values() const {
    return {tp, sp, pp, virtual_stages, dp, sharding};
  }
  [[nodiscard]] int num_ranks() const { return tp * pp * dp; }
  [[nodiscard]] ParallelConfig layout(const Model& model, at::ScalarType compute_type) const {
    return {.pp = pp,
            .dp = dp,
            .tp = tp,
            .ep = ep,
            .stages_per_rank = virtual_stages,
            .schedule = virtual_stages > 1 ? ScheduleKind::kInterleaved : schedule,
            .plan = model.plan(sp == 1),
            .sequence_parallel = sp == 1,
            .sharding = static_cast<DataSharding>(sharding),
            .recompute = recompute,
            .compute_type = compute_type,
            .head_loss = head_loss};
  }
};

inline const std::vector<std::string> kDimensions = {"tp", "sp", "pp", "virtual", "dp", "sharding"};

/// All points with at most `most_ranks` ranks.
inline std::vector<Point> all_points(int most_ranks = 8) {
  std::vector<Point> out;
  for (const int tp : {1, 2, 3, 4}) {
    for (const int sp : {0, 1}) {
      for (const int pp : {1, 2, 4}) {
        for (const int virtual_stages : {1, 2}) {
          for (const int dp : {1, 2}) {
            for (const int sharding : {0, 1, 2}) {
              if (tp * pp * dp > most_ranks) continue;
              out.push_back({tp, sp, pp, virtual_stages, dp, sharding});
            }
          }
        }
      }
    }
  }
  return out;
}

using Pair = std::array<size_t, 4>;  // two dimensions and their values

inline std::set<Pair> pairs_of(const Point& point) {
  const std::vector<int> values = point.values();
  std::set<Pair> out;
  for (size_t a = 0; a < values.size(); ++a) {
    for (size_t b = a + 1; b < values.size(); ++b) {
      out.insert({a, static_cast<size_t>(values[a]), b, static_cast<size_t>(values[b])});
    }
  }
  return out;
}

/// A small subset of the points that contains every pair of values in them.
inline std::vector<Point> covering(const std::vector<Point>& points) {
  std::set<Pair> missing;
  for (const Point& p : points) missing.merge(pairs_of(p));
  std::vector<Point> out;
  while (!missing.empty()) {
    const auto gain = [&](const Point& p) {
      const auto pairs = pairs_of(p);
      return std::count_if(pairs.begin(), pairs.end(),
                           [&](const Pair& pair) { return missing.contains(pair); });
    };
    const auto best =
        std::max_element(points.begin(), points.end(),
                         [&](const Point& a, const Point& b) { return gain(a) < gain(b); });
    for (const Pair& pair : pairs_of(*best)) missing.erase(pair);
    out.push_back(*best);
  }
  return out;
}

/// A training case apart from its layout: model, data and optimizer.
struct GridCase {
  std::string family;
  int64_t head_dim = 2;  ///< 6 heads; Cleave's attention kernel needs multiples of 16
  bool dropout = true;   ///< if the family has it
  bool tied = true;      ///< input and output embedding
  bool padding = true;   ///< in the second sequence
  bool label_masks = true;
  bool accumulates = true;  ///< micro-batches of 2 sequences; otherwise one of all sequences
  OptimizerOptions optimizer{};
  std::optional<LoraOptions> lora{};  ///< adapters are trained; the weights are frozen

  /// "gpt2, dropout, padding".
  [[nodiscard]] std::string describe() const {
    std::string text = family;
    if (dropout) text += ", dropout";
    if (tied) text += ", tied";
    if (padding) text += ", padding";
    if (label_masks) text += ", label masks";
    if (accumulates) text += ", accumulation";
    if (lora) text += ", " + lora->flags();
    if (optimizer.kind == OptimizerOptions::Kind::kMuon) return text + ", muon";
    return text + (optimizer.kind == OptimizerOptions::Kind::kSgd ? ", sgd" : ", adamw");
  }
};

/// Three experts of width 5, of which a token has two, in all blocks or in every second one. With
/// head_dim 16 (types of few digits) a token has all of them, because rounding must not decide
/// which.
inline void add_experts(const GridCase& c, nlohmann::ordered_json& json) {
  const int64_t top_k = c.head_dim == 2 ? 2 : 3;
  if (c.family == "mixtral") {
    json.update({{"intermediate_size", 5}, {"num_local_experts", 3}});
    json["num_experts_per_tok"] = top_k;
  }
  if (c.family != "qwen3_moe") return;
  json.update({{"moe_intermediate_size", 5}, {"num_experts", 3}, {"decoder_sparse_step", 2}});
  json["num_experts_per_tok"] = top_k;
}

/// What a family has in addition to Llama. Windows are shorter than the sequences.
inline void add_decoder_settings(const GridCase& c, double drop, nlohmann::ordered_json& json) {
  json.update({{"attention_dropout", drop}, {"pad_token_id", nullptr}});
  if (c.family.starts_with("qwen")) {
    json.update({{"use_sliding_window", true}, {"sliding_window", 3}, {"max_window_layers", 4}});
  }
  if (c.family == "mistral" || c.family == "mixtral") json["sliding_window"] = 3;
  add_experts(c, json);
  // Norms of small outputs amplify: with usual values, rounding OLMo 2's weights to bf16, in exact
  // arithmetic, changes its gradients by 17 % (transformers; Llama: 0.6 %); with these, by 0.2 %.
  // Gemma norms outputs too.
  if ((c.family.starts_with("olmo") || c.family.starts_with("gemma")) && c.head_dim == 16) {
    json.update({{"rms_norm_eps", 1.0}, {"initializer_range", 0.05}});
  }
  if (c.family == "smollm3") json.update({{"attention_bias", true}, {"mlp_bias", true}});
  if (c.family == "olmo3") {
    json.update(
        {{"sliding_window", 3},
         {"rope_scaling",
          {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4}}}});
  }
  if (c.family.starts_with("gemma")) {
    json.update({{"sliding_window", 3},
                 {"sliding_window_pattern", 2},  // of Gemma 3; Gemma 2 always has it
                 {"rope_local_base_freq", 50},
                 {"query_pre_attn_scalar", c.head_dim},
                 {"final_logit_softcapping", 1.5}});
    if (c.family == "gemma2") json["attn_logit_softcapping"] = 0.7;
  }
  if (c.family != "phi3") return;
  const std::vector<double> short_factors(static_cast<size_t>(c.head_dim / 2), 1.5);
  const std::vector<double> long_factors(short_factors.size(), 2.5);
  json.update({{"original_max_position_embeddings", 4},
               {"rope_scaling",
                {{"rope_type", "longrope"},
                 {"short_factor", short_factors},
                 {"long_factor", long_factors}}}});
}

/// Eight layers, with sizes that the number of ranks does not divide.
inline std::unique_ptr<Model> grid_model(const GridCase& c) {
  const int64_t hidden = 6 * c.head_dim;
  const double drop = c.dropout ? 0.1 : 0;
  nlohmann::ordered_json json = {
      {"model_type", c.family}, {"vocab_size", kGridVocab}, {"tie_word_embeddings", c.tied}};
  json["initializer_range"] = c.head_dim == 2 ? 0.3 : 0.1;
  if (c.family == "gpt2") {
    json.update({{"n_embd", hidden},
                 {"n_inner", 10},
                 {"n_layer", 8},
                 {"n_head", 6},
                 {"n_positions", 16},
                 {"attn_pdrop", drop},
                 {"resid_pdrop", drop},
                 {"embd_pdrop", drop}});
    return make_model(Json::parse(json.dump(), c.family));
  }
  json.update({{"hidden_size", hidden},
               {"intermediate_size", 10},
               {"num_hidden_layers", 8},
               {"num_attention_heads", 6},
               {"max_position_embeddings", 16}});
  if (c.family != "bert") {
    json.update({{"num_key_value_heads", 2}, {"head_dim", c.head_dim}});
    if (c.family != "llama") add_decoder_settings(c, drop, json);
  } else {
    json.update({{"architectures", {"BertForMaskedLM"}},
                 {"type_vocab_size", 2},
                 {"attention_probs_dropout_prob", drop},
                 {"hidden_dropout_prob", drop}});
  }
  return make_model(Json::parse(json.dump(), c.family));
}

/// The layout of a point, as flags.
inline std::string describe(const Point& point, const GridCase& c,
                            at::ScalarType type = at::kDouble) {
  return point.layout(*grid_model(c), type).describe();
}

/// The sequences `rows` of a step's batch.
inline Batch grid_batch(const GridCase& c, int64_t step, Range rows) {
  Batch batch;
  batch.ids = ids({kGridRows, kGridTokens}, kGridVocab, static_cast<uint64_t>(100 + step));
  batch.labels = ids({kGridRows, kGridTokens}, kGridVocab, static_cast<uint64_t>(200 + step));
  if (c.label_masks) {
    batch.labels.index_put_({at::tensor({0, 3}, at::kLong), at::tensor({2, 4}, at::kLong)}, -100);
  }
  if (c.padding) {
    batch.attention_mask = at::ones({kGridRows, kGridTokens}, at::kBool);
    batch.attention_mask[1].slice(0, 5).fill_(false);
    batch.labels[1].slice(0, 5).fill_(-100);
  }
  return batch.rows(rows.begin, rows.end);
}

/// One rank's run of some steps on a layout.
class GridRunner {
 public:
  GridRunner(const GridCase& c, const Point& point, World& world, at::ScalarType type = at::kDouble)
      : case_(c),
        layout_(layout_of(c, point, type)),
        mesh_(Mesh::build(world, {{"pp", layout_.pp}, {"dp", layout_.dp}, {"tp", layout_.tp}})),
        rank_(grid_model(c), layout_, mesh_, world, c.optimizer) {}

  void start() {
    materialize(rank_.model(), {.seed = 3, .dtype = layout_.leaf_type()});
    if (case_.lora && case_.lora->is_dora) start_magnitudes(rank_.model(), layout_.leaf_type());
    rank_.refresh_weights();
  }
  /// Starts an fp64 run with the initial values of an fp32 run.
  void start_as_fp32() {
    for (const auto& p : rank_.parameters()) {
      p->set_leaf(p->initial_value(3, at::kFloat).to(at::kDouble));
    }
    rank_.refresh_weights();
  }

  /// Returns loss and norm; gradients are left on the leaves.
  std::pair<double, double> gradients(int64_t step) {
    // fp16's smallest positive number is 6e-8; scaled gradients of up to 300 do not overflow.
    constexpr double kHalfScale = 128;
    rank_.optimizer().zero_grad();
    const int64_t dp = layout_.dp, r = mesh_["dp"].rank();
    const Batch batch = grid_batch(case_, step, {kGridRows * r / dp, kGridRows * (r + 1) / dp});
    const int64_t most = (kGridRows + dp - 1) / dp;
    const int64_t size = case_.accumulates ? 2 : most;
    const auto rows = micro_batches_of(batch, size, (most + size - 1) / size);
    const PassResult pass =
        rank_.train_pass(rows, 9, step, layout_.compute_type == at::kHalf ? kHalfScale : 1);
    const Tensor loss =
        mesh_["dp"].all_reduce(at::scalar_tensor(pass.loss, at::kDouble), "loss of all rows");
    return {loss.item<double>(), pass.norm.value};
  }
  void apply() { rank_.step(kGridRate); }
  [[nodiscard]] RankModel& rank() { return rank_; }
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }

 private:
  static ParallelConfig layout_of(const GridCase& c, const Point& point, at::ScalarType type) {
    ParallelConfig layout = point.layout(*grid_model(c), type);
    layout.lora = c.lora;
    return layout;
  }

  GridCase case_;
  ParallelConfig layout_;
  Mesh mesh_;
  RankModel rank_;
};

/// Results of three steps on one rank: whole gradients and weights by name.
struct GridRecord {
  std::vector<double> losses, norms;
  std::vector<std::map<std::string, Tensor>> gradients;  ///< by step
  std::map<std::string, Tensor> start, weights;          ///< before the first step, after the last
};

/// With `as_fp32` an fp64 run has the initial values of an fp32 run.
inline GridRecord record_of_one_rank(const GridCase& c, at::ScalarType type = at::kDouble,
                                     bool as_fp32 = false) {
  GridRecord record;
  on_world(1, [&](World& world) {
    GridRunner run(c, {}, world, type);
    as_fp32 ? run.start_as_fp32() : run.start();
    const auto weights = [&] {
      std::map<std::string, Tensor> out;
      for (const auto& p : trained_of(run.rank().parameters())) {
        out[p->name()] = p->leaf().detach().to(at::kDouble).clone();
      }
      return out;
    };
    record.start = weights();
    for (int64_t step = 0; step < kGridSteps; ++step) {
      const auto [loss, norm] = run.gradients(step);
      record.losses.push_back(loss);
      record.norms.push_back(norm);
      record.gradients.emplace_back();
      for (const auto& p : trained_of(run.rank().parameters())) {
        record.gradients.back()[p->name()] = p->leaf().grad().to(at::kDouble).clone();
      }
      run.apply();
    }
    record.weights = weights();
  });
  return record;
}

/// Raises `error` to `other` if that is larger; NaN stays NaN.
inline void widen(double& error, double other) {
  if (!std::isnan(error) && !(other <= error)) error = other;
}

/// Largest difference of this rank's leaves, or their gradients, from its shards of whole tensors.
inline double largest_error(const Parameters& parameters,
                            const std::map<std::string, Tensor>& whole, bool of_gradients) {
  double error = 0;
  for (const auto& p : parameters) {
    const Tensor want = p->part_of(whole.at(p->name()));
    if (want.numel() == 0) continue;
    const Tensor have = of_gradients ? p->leaf().grad() : p->leaf().detach();
    widen(error, (have - want).abs().max().item<double>());
  }
  return error;
}

/// The largest error of steps [from, kGridSteps) on this rank; weights are compared after the last.
inline double compare(GridRunner& run, const GridRecord& want, int64_t from) {
  double error = 0;
  for (int64_t step = from; step < kGridSteps; ++step) {
    const auto i = static_cast<size_t>(step);
    const auto [loss, norm] = run.gradients(step);
    widen(error, std::abs(loss - want.losses[i]));
    widen(error, std::abs(norm - want.norms[i]));
    widen(error, largest_error(run.rank().parameters(), want.gradients[i], true));
    run.apply();
  }
  widen(error, largest_error(run.rank().parameters(), want.weights, false));
  return error;
}

/// The largest error of all steps on a layout, over all ranks.
inline double error_of(const GridCase& c, const Point& point, const GridRecord& want) {
  double error = 0;
  std::mutex mutex;
  on_world(point.num_ranks(), [&](World& world) {
    GridRunner run(c, point, world);
    run.start();
    const double own = compare(run, want, 0);
    const std::lock_guard lock(mutex);
    widen(error, own);
  });
  return error;
}

/// Saves the run after its first step.
inline void save(GridRunner& run, World& world, const std::string& folder) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  for (int r = 0; r < world.size(); ++r) ranks[static_cast<size_t>(r)] = r;
  const Axis everyone = world.size() == 1 ? Axis() : Axis(world.group(ranks, "everyone"));
  save_checkpoint(folder,
                  {.step = 1,
                   .model = &run.rank().model(),
                   .optimizer = &run.rank().optimizer(),
                   .dtype = at::kDouble,
                   .carried = {},
                   .state_json = "{}",
                   .files = {}},
                  {.world = everyone, .tp = run.mesh()["tp"], .dp = run.mesh()["dp"]});
}

/// Runs the first step on a layout and saves the run.
inline void save_first_step(const GridCase& c, const Point& point, const std::string& folder) {
  on_world(point.num_ranks(), [&](World& world) {
    GridRunner run(c, point, world);
    run.start();
    run.gradients(0);
    run.apply();
    save(run, world, folder);
  });
}

/// Continues a saved run, on any layout.
inline void resume(GridRunner& run, const std::string& folder) {
  load_model(run.rank().model(), ModelFolder::open(folder), at::kDouble);
  load_optimizer(run.rank().optimizer(), run.rank().model(), folder);
  run.rank().refresh_weights();
}

}  // namespace cleave::test
