// Every combination of tensor, sequence, pipeline and data parallelism, of the sharding of
// optimizers and weights, against one rank in fp64. CLEAVE_TEST_LEVEL=full runs all that fit in
// eight rank threads; otherwise a set in which every pair of sizes occurs.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/log.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/optim/optimizer.h"
#include "cleave/train/rank_model.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace cleave {
namespace {

constexpr int kMostRanks = 8;
constexpr int64_t kRows = 5, kTokens = 7, kMicroRows = 2, kSteps = 3;
// Sums of at most a few thousand products in another order: 2^-53 times their number times the
// condition of eight layers and three steps, for which a factor of a hundred is left.
constexpr double kTolerance = 1e-9;

/// Eight layers, sizes that ranks do not divide, dropout where the family has it.
const std::map<std::string, const char*> kFamilies = {
    {"llama", R"json({"model_type": "llama", "vocab_size": 23, "hidden_size": 12,
      "intermediate_size": 10, "num_hidden_layers": 8, "num_attention_heads": 6,
      "num_key_value_heads": 2, "head_dim": 2, "max_position_embeddings": 16,
      "tie_word_embeddings": true, "initializer_range": 0.3})json"},
    {"gpt2", R"json({"model_type": "gpt2", "vocab_size": 23, "n_embd": 12, "n_inner": 10,
      "n_layer": 8, "n_head": 6, "n_positions": 16, "initializer_range": 0.3,
      "attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1})json"},
    {"bert", R"json({"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 23,
      "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 8,
      "num_attention_heads": 6, "max_position_embeddings": 16, "type_vocab_size": 2,
      "initializer_range": 0.3, "attention_probs_dropout_prob": 0.1,
      "hidden_dropout_prob": 0.1})json"}};

std::unique_ptr<Model> model_of(const std::string& family) {
  return make_model(Json::parse(kFamilies.at(family), family));
}

/// One combination: the values of the grid's dimensions.
struct Point {
  int tp = 1, sp = 0, pp = 1, virtual_stages = 1, dp = 1, sharding = 0;

  [[nodiscard]] std::vector<int> values() const {
    return {tp, sp, pp, virtual_stages, dp, sharding};
  }
  ScheduleKind schedule = ScheduleKind::k1F1B;  // of one stage a rank

  [[nodiscard]] TrainLayout layout(const Model& model) const {
    return {.pp = pp,
            .dp = dp,
            .tp = tp,
            .stages_per_rank = virtual_stages,
            .schedule = virtual_stages > 1 ? ScheduleKind::kInterleaved : schedule,
            .plan = model.plan(sp == 1),
            .sequence_parallel = sp == 1,
            .sharding = static_cast<DataSharding>(sharding),
            .compute_type = at::kDouble};
  }
};

const std::vector<std::string> kDimensions = {"tp", "sp", "pp", "virtual", "dp", "sharding"};

std::vector<Point> all_points() {
  std::vector<Point> out;
  for (const int tp : {1, 2, 3, 4}) {
    for (const int sp : {0, 1}) {
      for (const int pp : {1, 2, 4}) {
        for (const int virtual_stages : {1, 2}) {
          for (const int dp : {1, 2}) {
            for (const int sharding : {0, 1, 2}) {
              if (tp * pp * dp > kMostRanks) continue;
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

std::set<Pair> pairs_of(const Point& point) {
  const std::vector<int> values = point.values();
  std::set<Pair> out;
  for (size_t a = 0; a < values.size(); ++a) {
    for (size_t b = a + 1; b < values.size(); ++b) {
      out.insert({a, static_cast<size_t>(values[a]), b, static_cast<size_t>(values[b])});
    }
  }
  return out;
}

/// Few points in which every pair of values occurs that occurs at all.
std::vector<Point> covering(const std::vector<Point>& points) {
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

std::vector<Point> points_to_run() {
  const char* level = std::getenv("CLEAVE_TEST_LEVEL");
  return level != nullptr && std::string(level) != "quick" ? all_points() : covering(all_points());
}

/// What a step is worth, and whole gradients and weights by name.
struct Record {
  std::vector<double> losses, norms;
  std::vector<std::map<std::string, Tensor>> gradients;  // by step
  std::map<std::string, Tensor> weights;                 // after the last step
};

Batch batch_of(int64_t step, Range rows) {
  Batch batch;
  batch.ids = test::ids({kRows, kTokens}, 23, static_cast<uint64_t>(100 + step));
  batch.labels = test::ids({kRows, kTokens}, 23, static_cast<uint64_t>(200 + step));
  batch.labels.index_put_({at::tensor({0, 3}, at::kLong), at::tensor({2, 4}, at::kLong)}, -100);
  batch.attention_mask = at::ones({kRows, kTokens}, at::kBool);
  batch.attention_mask[1].slice(0, 5).fill_(false);
  batch.labels[1].slice(0, 5).fill_(-100);
  return batch.rows(rows.begin, rows.end);
}

/// One rank's run of some steps on a layout.
class Runner {
 public:
  Runner(const std::string& family, const Point& point, World& world)
      : layout_(point.layout(*model_of(family))),
        mesh_(Mesh::build(world, {{"pp", layout_.pp}, {"dp", layout_.dp}, {"tp", layout_.tp}})),
        rank_(model_of(family), layout_, mesh_, world) {
    std::vector<int> ranks(static_cast<size_t>(world.size()));
    for (int r = 0; r < world.size(); ++r) ranks[static_cast<size_t>(r)] = r;
    everyone_ = world.size() == 1 ? Axis() : Axis(world.group(ranks, "everyone"));
  }

  void start() {
    materialize(rank_.model(), {.seed = 3, .dtype = at::kDouble});
    rank_.leaves_changed();
  }
  void resume(const std::string& folder) {
    load_model(rank_.model(), ModelFolder::open(folder), at::kDouble);
    load_optimizer(rank_.optimizer(), rank_.model(), folder);
    rank_.leaves_changed();
  }
  void save(const std::string& folder) {
    save_checkpoint(folder,
                    {.step = 1,
                     .model = &rank_.model(),
                     .optimizer = &rank_.optimizer(),
                     .dtype = at::kDouble,
                     .carried = {},
                     .state_json = "{}",
                     .files = {}},
                    {.world = everyone_, .tp = mesh_["tp"], .dp = mesh_["dp"]});
  }

  /// Returns loss and norm; gradients are left on the leaves.
  std::pair<double, double> gradients(int64_t step) {
    rank_.optimizer().zero_grad();
    const int64_t dp = layout_.dp, r = mesh_["dp"].rank();
    const Batch batch = batch_of(step, {kRows * r / dp, kRows * (r + 1) / dp});
    const int64_t most = (kRows + dp - 1) / dp;
    const auto rows = micro_batches_of(batch, kMicroRows, (most + kMicroRows - 1) / kMicroRows);
    const PassResult pass = rank_.train_pass(rows, 9, step);
    const Tensor loss =
        mesh_["dp"].all_reduce(at::scalar_tensor(pass.loss, at::kDouble), "loss of all rows");
    return {loss.item<double>(), rank_.gradient_norm().value};
  }
  void apply() { rank_.step(1e-2); }
  [[nodiscard]] RankModel& rank() { return rank_; }

 private:
  TrainLayout layout_;
  Mesh mesh_;
  RankModel rank_;
  Axis everyone_;
};

void on_world(int num_ranks, const std::function<void(World&)>& body) {
  run_ranks(
      num_ranks,
      [&](World& world) {
        at::get_num_threads();  // a thread's own number holds only after it was asked for once
        at::set_num_threads(1);
        body(world);
      },
      RankOptions{.timeout_s = 60, .flight_log_folder = ""});
}

Record record_of_one_rank(const std::string& family) {
  Record record;
  on_world(1, [&](World& world) {
    Runner run(family, {}, world);
    run.start();
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto [loss, norm] = run.gradients(step);
      record.losses.push_back(loss);
      record.norms.push_back(norm);
      record.gradients.emplace_back();
      for (const auto& p : run.rank().parameters()) {
        record.gradients.back()[p->name()] = p->leaf().grad().clone();
      }
      run.apply();
    }
    for (const auto& p : run.rank().parameters()) {
      record.weights[p->name()] = p->leaf().detach().clone();
    }
  });
  return record;
}

/// `error` becomes `other` where that is larger, or none.
void widen(double& error, double other) {
  if (!std::isnan(error) && !(other <= error)) error = other;
}

/// Largest difference of this rank's leaves, or their gradients, from its parts of whole tensors.
double largest_error(const Parameters& parameters, const std::map<std::string, Tensor>& whole,
                     bool of_gradients) {
  double error = 0;
  for (const auto& p : parameters) {
    const Tensor want = p->part_of(whole.at(p->name()));
    if (want.numel() == 0) continue;
    const Tensor have = of_gradients ? p->leaf().grad() : p->leaf().detach();
    widen(error, (have - want).abs().max().item<double>());
  }
  return error;
}

/// The largest error of steps [from, kSteps) over ranks; weights are compared after the last.
double compare(Runner& run, const Record& want, int64_t from) {
  double error = 0;
  for (int64_t step = from; step < kSteps; ++step) {
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

double error_of(const std::string& family, const Point& point, const Record& want) {
  double error = 0;
  std::mutex mutex;
  on_world(point.tp * point.pp * point.dp, [&](World& world) {
    Runner run(family, point, world);
    run.start();
    const double own = compare(run, want, 0);
    const std::lock_guard lock(mutex);
    widen(error, own);
  });
  return error;
}

/// "3 3 2" for a dimension of which three values occurred.
void print_counts(const std::string& family, const std::vector<Point>& points, double error) {
  log_info("grid ", family, ": ", points.size(), " layouts, largest error ", error);
  for (size_t d = 0; d < kDimensions.size(); ++d) {
    std::map<int, int> counts;
    for (const Point& p : points) ++counts[p.values()[d]];
    std::string text;
    for (const auto& [value, count] : counts) text += str("  ", value, ": ", count);
    log_info("  ", kDimensions[d], text);
  }
}

class Grid : public testing::TestWithParam<std::string> {};

TEST_P(Grid, EveryLayout_TrainsAsOneRankDoes) {
  const Record want = record_of_one_rank(GetParam());
  EXPECT_LT(want.losses[2], 2 * want.losses[0]);
  const std::vector<Point> points = points_to_run();
  double largest = 0;
  for (const Point& point : points) {
    const double error = error_of(GetParam(), point, want);
    EXPECT_LE(error, kTolerance) << point.layout(*model_of(GetParam())).describe();
    largest = std::max(largest, error);
  }
  print_counts(GetParam(), points, largest);
}

TEST_P(Grid, OtherSchedules_TrainAsOneRankDoesHoweverThingsAreCut) {
  const Record want = record_of_one_rank(GetParam());
  for (const ScheduleKind schedule : {ScheduleKind::kGpipe, ScheduleKind::kZeroBubble}) {
    for (const int sharding : {0, 1, 2}) {
      const Point point{.tp = 2, .pp = 2, .dp = 2, .sharding = sharding, .schedule = schedule};
      EXPECT_LE(error_of(GetParam(), point, want), kTolerance)
          << point.layout(*model_of(GetParam())).describe();
    }
  }
}

TEST_P(Grid, SavedOnOneLayout_GoesOnOnAnother) {
  const Record want = record_of_one_rank(GetParam());
  const std::vector<Point> points = all_points();
  std::mt19937 random(7);
  const size_t num_pairs = points_to_run().size() == points.size() ? 20 : 7;
  for (size_t i = 0; i < num_pairs; ++i) {
    const Point& from = points[random() % points.size()];
    const Point& to = points[random() % points.size()];
    const test::TempFolder folder;
    const std::string saved = (folder / "saved").string();
    on_world(from.tp * from.pp * from.dp, [&](World& world) {
      Runner run(GetParam(), from, world);
      run.start();
      run.gradients(0);
      run.apply();
      run.save(saved);
    });
    on_world(to.tp * to.pp * to.dp, [&](World& world) {
      Runner run(GetParam(), to, world);
      run.resume(saved);
      EXPECT_LE(compare(run, want, 1), kTolerance)
          << from.layout(*model_of(GetParam())).describe() << " to "
          << to.layout(*model_of(GetParam())).describe();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Grid, testing::Values("llama", "gpt2", "bert"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace cleave
