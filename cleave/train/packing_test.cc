// Texts that share a sequence train as texts that have one each.
//
// Oracle: the same texts, one per sequence, on one rank in fp64.
#include "cleave/data/packing.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "tests/support/list_dataset.h"
#include "tests/support/paths.h"
#include "tests/support/rounding.h"
#include "tests/support/temp_folder.h"
#include "tests/support/train_grid.h"

namespace cleave::packing_test {
namespace {

using test::grid_model;
using test::GridCase;
using test::ListDataset;
using test::on_world;
using test::Point;

using Whole = std::map<std::string, Tensor>;  // tensors of all parameters, by name

/// Texts of 2 to 9 tokens. The loss is on all tokens of some, on the second half of others.
std::shared_ptr<const Dataset> texts() {
  std::vector<Sample> samples;
  uint64_t seed = 0;
  for (const int64_t length : {3, 7, 2, 5, 9, 4, 6}) {
    const Tensor ids = test::ids({length}, test::kGridVocab, ++seed);
    Sample sample;
    sample.ids.assign(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + length);
    if (seed % 2 == 0) {
      sample.labels = sample.ids;
      std::fill_n(sample.labels.begin(), length / 2, -100);
    }
    samples.push_back(sample);
  }
  return std::make_shared<ListDataset>(std::move(samples));
}

/// Four sequences of up to 12 tokens: 3 + 7 + 2, 5 + 4, 9, 6.
std::shared_ptr<const Dataset> packed_texts() {
  return packed_samples(texts(), {.seq_len = 12, .shuffle = false});
}

GridCase case_of(const std::string& family, at::ScalarType type) {
  // 16 dims per head are what Cleave's attention kernels need.
  return {.family = family, .head_dim = type == at::kDouble ? 2 : 16, .dropout = false};
}

/// What a pass starts from.
struct Start {
  at::ScalarType type = at::kDouble;
  bool as_fp32 = false;  ///< the initial values of an fp32 run
};

using See = std::function<void(double loss, const Parameters& parameters)>;

/// Runs forward and backward of all sequences on each rank of a layout, in micro-batches of two.
/// `see` gets the results of one rank at a time. Without positions, all tokens of a sequence are
/// one text.
void pass(const GridCase& c, const Point& point, const Start& start, const Dataset& data,
          const See& see, bool has_positions = true) {
  std::mutex mutex;
  on_world(point.num_ranks(), [&](World& world) {
    const ParallelConfig layout = point.layout(*grid_model(c), start.type);
    const Mesh mesh = Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}});
    RankModel rank(grid_model(c), layout, mesh, world);
    if (start.as_fp32) {
      for (const auto& p : rank.parameters()) {
        p->set_leaf(p->initial_value(3, at::kFloat).to(start.type));
      }
    } else {
      materialize(rank.model(), {.seed = 3, .dtype = layout.leaf_type()});
    }
    rank.refresh_weights();
    rank.optimizer().zero_grad();
    const int64_t count = data.size();
    const int64_t dp = layout.dp;
    const int64_t r = mesh["dp"].rank();
    const SampleOrder order{.num_samples = count, .batch_size = count, .shuffle = false};
    Batch batch = make_batch(data, order, 0, count * r / dp, count * (r + 1) / dp);
    if (!has_positions) batch.positions = Tensor();
    const int64_t most = (count + dp - 1) / dp;
    const PassResult result = rank.train_pass(micro_batches_of(batch, 2, (most + 1) / 2), 9, 0);
    const Tensor loss =
        mesh["dp"].all_reduce(at::scalar_tensor(result.loss, at::kDouble), "loss of all texts");
    const std::lock_guard lock(mutex);
    see(loss.item<double>(), rank.parameters());
  });
}

struct Record {
  double loss = 0;
  Whole gradients;  // fp64
};

/// A pass on one rank.
Record record_of(const GridCase& c, const Start& start, const Dataset& data) {
  Record record;
  pass(c, {}, start, data, [&](double loss, const Parameters& parameters) {
    record.loss = loss;
    for (const auto& p : parameters) {
      record.gradients[p->name()] = p->leaf().grad().to(at::kDouble).clone();
    }
  });
  return record;
}

double norm_of(const Whole& tensors) {
  double sum = 0;
  for (const auto& [name, tensor] : tensors) sum += tensor.square().sum().item<double>();
  return std::sqrt(sum);
}

/// The Euclidean norm of the differences of this rank's gradients from its shards of `want`.
double distance(const Parameters& parameters, const Whole& want) {
  double sum = 0;
  for (const auto& p : parameters) {
    const Tensor part = p->part_of(want.at(p->name()));
    sum += (p->leaf().grad().to(at::kDouble) - part).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

/// Layouts with every kind of parallelism, each schedule of a pipeline, and recompute.
std::vector<Point> layouts() {
  constexpr auto kFull = RecomputeKind::kFull, kSelective = RecomputeKind::kSelective;
  return {{},
          {.tp = 2},
          {.tp = 3, .sp = 1},
          {.pp = 2},
          {.pp = 2, .schedule = ScheduleKind::kZeroBubble},
          {.pp = 2, .virtual_stages = 2},
          {.dp = 2, .sharding = 1},
          {.dp = 2, .sharding = 2},
          {.dp = 3},
          {.recompute = kSelective},
          {.recompute = kFull},
          {.tp = 2, .sp = 1, .pp = 2, .dp = 2, .sharding = 2, .recompute = kFull}};
}

class Packing : public testing::TestWithParam<std::string> {};

// The tolerance of the grid of layouts (grid_test.cc) in fp64.
TEST_P(Packing, InFp64_LossAndGradientsAreThoseOfOneTextPerSequence) {
  constexpr double kTolerance = 1e-9;
  const GridCase c = case_of(GetParam(), at::kDouble);
  const Record want = record_of(c, {}, *texts());
  for (const Point& point : layouts()) {
    const std::string layout = describe(point, c);
    pass(c, point, {}, *packed_texts(), [&](double loss, const Parameters& parameters) {
      EXPECT_NEAR(loss, want.loss, kTolerance) << layout;
      EXPECT_LE(distance(parameters, want.gradients), kTolerance) << layout;
    });
  }
}

// The bounds of tests/support/rounding.h, for the loss and for all gradients of a rank. Texts with
// a sequence each have errors of the same size: the largest of three layouts is the measure.
TEST_P(Packing, InTheTypesOfUsers_OnlyRoundingDiffers) {
  const auto data = packed_texts();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const GridCase c = case_of(GetParam(), type);
    const Record exact = record_of(c, {.as_fp32 = true}, *texts());
    double loss_error = 0;
    double error = 0;
    for (const Point& point : {Point{}, Point{.tp = 2}, Point{.dp = 2}}) {
      pass(c, point, {.type = type}, *texts(), [&](double loss, const Parameters& parameters) {
        loss_error = std::max(loss_error, std::abs(loss - exact.loss));
        error = std::max(error, distance(parameters, exact.gradients));
      });
    }
    const double unit = test::unit_roundoff(type);
    const double loss_bound = test::rounding_bound(loss_error, unit * exact.loss);
    const double bound = test::rounding_bound(error, unit * norm_of(exact.gradients));
    for (const Point& point : layouts()) {
      const std::string layout = describe(point, c, type);
      pass(c, point, {.type = type}, *data, [&](double loss, const Parameters& parameters) {
        EXPECT_NEAR(loss, exact.loss, loss_bound) << layout;
        EXPECT_LE(distance(parameters, exact.gradients), bound) << layout;
      });
    }
    if (type != at::kFloat) continue;
    // The bound finds attention that crosses texts.
    const auto crosses = [&](double, const Parameters& parameters) {
      EXPECT_GT(distance(parameters, exact.gradients), bound);
    };
    pass(c, {}, {.type = type}, *data, crosses, /*has_positions=*/false);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Packing,
                         testing::Values("llama", "gpt2", "qwen3", "mistral", "smollm3"),
                         [](const auto& param) { return param.param; });

// Every layer and micro-batch with texts that share sequences sees those positions.
TEST(ContextOf, PackedBatch_HasPositionsAndTheFirstKeyOfEachQuery) {
  const auto data = packed_texts();
  const SampleOrder order{.num_samples = 4, .batch_size = 4, .shuffle = false};
  const Batch batch = make_batch(*data, order, 0, 0, 4);
  const Context context = context_of(batch.rows(1, 3));
  const auto table = [](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).view({2, 12});
  };
  EXPECT_TRUE(at::equal(context.positions, table({0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0,  //
                                                  0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0})));
  EXPECT_TRUE(at::equal(context.first_key, table({0, 0, 0, 0, 0, 5, 5, 5, 5, 9, 10, 11,  //
                                                  0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 10, 11})));
  const Batch alone =
      make_batch(*texts(), {.num_samples = 7, .batch_size = 7, .shuffle = false}, 0, 0, 7);
  EXPECT_FALSE(context_of(alone).first_key.defined());
}

// Oracle: the lengths of the texts. The utilization of a packed run is that of its texts alone.
TEST(TokenSums, OfPaddedAndPackedTexts_AreTheSame) {
  const auto sums_of = [](const Dataset& data, int64_t num_micro_batches) {
    const int64_t size = data.size();
    const SampleOrder order{.num_samples = size, .batch_size = size, .shuffle = false};
    const Batch batch = make_batch(data, order, 0, 0, size);
    const int64_t rows = (size + num_micro_batches - 1) / num_micro_batches;
    // One micro-batch more than there are sequences for.
    return token_sums(micro_batches_of(batch, rows, num_micro_batches + 1), size);
  };
  for (const int64_t num_micro_batches : {1, 2, 3}) {
    for (const auto& data : {texts(), packed_texts()}) {
      const TokenSums sums = sums_of(*data, num_micro_batches);
      EXPECT_EQ(sums.tokens, 3 + 7 + 2 + 5 + 9 + 4 + 6);
      EXPECT_EQ(sums.lengths, 9 + 49 + 4 + 25 + 81 + 16 + 36);
      EXPECT_EQ(sums.length(), 6);  // 220 / 36
    }
  }
  EXPECT_EQ(TokenSums().length(), 0);
}

/// The losses of a run that trains nothing, on training and evaluation data.
std::pair<double, double> losses_of(TrainOptions o) {
  o.model = test::source_file("tests/golden/dpo");
  o.eval_data = o.data;
  o.steps = 1;
  o.lr = 0;
  o.dtype = "fp64";
  o.seq_len = 24;
  o.shuffle = false;
  o.threads_per_rank = 1;
  cleave_train(o);
  const StepMetrics last = read_metrics(o.out + "/metrics.jsonl").back();
  return {last.loss, last.eval_loss.value()};
}

// Oracle: the ids of each document as a row of its own, without packing; the tokenizer's ids are
// bytes, and 256 ends a document. In fp64 only the order of sums differs.
TEST(PackedDocuments, AnyLayout_HasTheLossOfEachDocumentAlone) {
  const test::TempFolder folder;
  std::ofstream texts(folder / "texts.jsonl"), rows(folder / "rows.jsonl");
  for (const std::string document : {"The sky is blue.", "Hi", "", "x", "one two", "2 + 2 = 4",
                                     "A longer one, which is more than a sequence has."}) {
    texts << nlohmann::json{{"text", document}}.dump() << '\n';
    std::vector<int> ids(document.begin(), document.end());
    ids.push_back(256);
    // The parts of a long document: each predicts from the last token of the part before.
    for (size_t at = 0; at + 1 < ids.size(); at += 23) {
      const std::vector<int> part(
          ids.begin() + static_cast<std::ptrdiff_t>(at),
          ids.begin() + static_cast<std::ptrdiff_t>(std::min(at + 24, ids.size())));
      rows << nlohmann::json{{"input_ids", part}}.dump() << '\n';
    }
  }
  texts.close();
  rows.close();
  TrainOptions alone;
  alone.data = {folder / "rows.jsonl"};
  alone.out = folder / "alone";
  alone.batch_size = 8;  // of 8 rows
  const auto want = losses_of(alone);
  int number = 0;
  for (const auto& change : std::vector<std::function<void(TrainOptions&)>>{
           [](TrainOptions&) {}, [](TrainOptions& o) { o.tp = 3; },
           [](TrainOptions& o) { o.pp = 2; }, [](TrainOptions& o) { o.dp = 2, o.fsdp = true; }}) {
    TrainOptions packed;
    packed.data = {folder / "texts.jsonl"};
    packed.packing = true;
    packed.out = folder / str("packed", number++);
    packed.batch_size = 4;  // 17 + 3 + 2, 8 + 10 + 3, 24 and 24 tokens
    change(packed);
    const auto got = losses_of(packed);
    EXPECT_NEAR(got.first, want.first, 1e-9) << number;
    EXPECT_NEAR(got.second, want.second, 1e-9) << number;
  }
}

}  // namespace
}  // namespace cleave::packing_test
