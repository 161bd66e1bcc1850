#include "cleave/pipeline/pipeline_model.h"

#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "cleave/model/model.h"
#include "cleave/parallel/gradients.h"
#include "cleave/torch_internals/node.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"
#include "tests/support/tiny_sequence.h"

// Oracle: the loss and every gradient of the same Layers on one rank without a pipeline, in fp64.
namespace cleave::pipeline_model_test {
namespace {

using test::thrown_by;
using test::TinyBatch;
using test::TinyOptions;
using test::TinySequence;

/// How a model is distributed over ranks.
struct Grid {
  ScheduleKind kind = ScheduleKind::k1F1B;
  int pp = 1, stages_per_rank = 1, tp = 1;
  Placement between = Replicate{};
  friend std::ostream& operator<<(std::ostream& out, const Grid& g) {
    return out << name(g.kind) << " pp=" << g.pp << " virtual=" << g.stages_per_rank
               << " tp=" << g.tp << " " << g.between.describe();
  }
};

/// Runs `body(pp, tp)` on pp x tp rank threads.
void on_grid(int pp, int tp, const std::function<void(const Axis&, const Axis&)>& body) {
  test::on_world(pp * tp, [&](World& world) {
    const Mesh mesh = Mesh::build(world, {{"pp", pp}, {"tp", tp}});
    body(mesh["pp"], mesh["tp"]);
  });
}

void give_memory(const std::vector<Layer*>& layers) {
  for (Layer* layer : layers) materialize(*layer, {.seed = 1, .dtype = at::kDouble});
}

/// Loss and whole gradients by name of one rank without a pipeline.
struct Unsplit {
  double loss = 0;
  std::map<std::string, Tensor> grads;

  Unsplit(std::vector<Layer*> sequence, const TinyBatch& batch) {
    give_memory(sequence);
    const auto micro_batches = batch.micro_batches(Axis());
    for (size_t m = 0; m < micro_batches.size(); ++m) {
      DTensor x = micro_batches[m].input;
      for (Layer* layer : sequence) x = (*layer)(x, micro_batches[m].context);
      const Tensor part = batch.loss()(x, m);
      part.backward();
      loss += part.item<double>();
    }
    for (Layer* layer : sequence) {
      for (const auto& p : layer->parameters()) grads[p->name()] = p->leaf().grad();
    }
  }
};

/// Expects the pipeline's losses and gradients on this rank to be those without a pipeline.
void expect_equals(PipelineModel& model, const Axis& tp, const TinyBatch& batch,
                   const Unsplit& want) {
  const auto losses = model.run_train(batch.micro_batches(tp), batch.loss());
  double loss = 0;
  for (const double l : losses) loss += l;
  EXPECT_EQ(losses.size(), batch.rows.size());
  EXPECT_NEAR(loss, want.loss, 1e-12 * want.loss);
  finish_gradients(model.parameters(), tp);
  model.sum_tied_gradients();
  for (const auto& p : model.parameters()) {
    const Tensor grad = test::slice_of(*p, want.grads.at(p->name()));
    const double scale = std::max(1.0, want.grads.at(p->name()).abs().max().item<double>());
    EXPECT_LE(test::largest_difference(p->leaf().grad(), grad), 1e-12 * scale) << p->name();
  }
}

void expect_tiny_equals(const Grid& grid, const TinyOptions& options,
                        const std::vector<int64_t>& rows) {
  SCOPED_TRACE(testing::Message() << grid << " tied=" << options.tied
                                  << " micro-batches=" << rows.size());
  const TinyBatch batch(rows, options.vocab);
  TinySequence whole(options);
  const Unsplit want(whole.sequence(), batch);
  on_grid(grid.pp, grid.tp, [&](const Axis& pp, const Axis& tp) {
    TinySequence tiny(options);
    if (tp.size() > 1) parallelize_module(tiny, tp, TinySequence::plan(grid.between));
    PipelineModel model(tiny.sequence(), pp,
                        {.schedule = grid.kind, .stages_per_rank = grid.stages_per_rank});
    give_memory(model.local_layers());
    expect_equals(model, tp, batch, want);
  });
}

class EverySchedule : public testing::TestWithParam<std::tuple<ScheduleKind, int>> {
 protected:
  [[nodiscard]] static ScheduleKind kind() { return std::get<0>(GetParam()); }
  [[nodiscard]] static int pp() { return std::get<1>(GetParam()); }
  [[nodiscard]] static bool refuses(int stages_per_rank) {
    return kind() == ScheduleKind::k1F1B && stages_per_rank > 1;
  }
};
using ScheduleAndRanks = std::tuple<ScheduleKind, int>;
std::string case_name(const testing::TestParamInfo<ScheduleAndRanks>& info) {
  const ScheduleKind kind = std::get<0>(info.param);
  return str(kind == ScheduleKind::kZeroBubble ? "zero_bubble" : name(kind), "_pp",
             std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule,
                         testing::Combine(testing::Values(ScheduleKind::kGpipe, ScheduleKind::k1F1B,
                                                          ScheduleKind::kInterleaved,
                                                          ScheduleKind::kZeroBubble),
                                          testing::Values(1, 2, 3, 4)),
                         case_name);

// One micro-batch, fewer than stages, and a number that stages do not divide, with a smaller last
// one.
TEST_P(EverySchedule, AnyMicroBatches_GiveTheUnsplitLossAndGradients) {
  for (const int stages_per_rank : {1, 2}) {
    if (refuses(stages_per_rank)) continue;
    for (const int tp : {1, 2}) {
      const Grid grid{kind(), pp(), stages_per_rank, tp};
      expect_tiny_equals(grid, {}, {2});
      expect_tiny_equals(grid, {}, {1, 2});
      expect_tiny_equals(grid, {}, {2, 2, 2, 2, 1});
    }
  }
}

TEST_P(EverySchedule, TiedEndsAndDropout_GiveTheUnsplitLossAndGradients) {
  for (const int stages_per_rank : {1, 2}) {
    if (refuses(stages_per_rank)) continue;
    for (const int tp : {1, 2}) {
      const Grid grid{kind(), pp(), stages_per_rank, tp};
      expect_tiny_equals(grid, {.tied = true, .dropout = 0.3}, {2, 1, 2});
    }
  }
}

TEST_P(EverySchedule, ActivationsShardedAlongTokens_CrossStages) {
  for (const int stages_per_rank : {1, 2}) {
    if (refuses(stages_per_rank)) continue;
    const Grid grid{kind(), pp(), stages_per_rank, 2, Shard{1}};
    expect_tiny_equals(grid, {.dropout = 0.3}, {2, 2, 1});  // 3 tokens over 2 ranks
  }
}

// Every schedule runs backwards in the order of micro-batches, so sums have one order.
TEST(PipelineModel, OtherScheduleOrStages_GiveTheSameBits) {
  const TinyBatch batch({2, 2, 2, 2, 1}, 11);
  std::map<std::string, Tensor> first;
  std::mutex mutex;
  for (const Grid& grid :
       {Grid{ScheduleKind::k1F1B, 1}, Grid{ScheduleKind::kGpipe, 4}, Grid{ScheduleKind::k1F1B, 4},
        Grid{ScheduleKind::kInterleaved, 2, 3}, Grid{ScheduleKind::kInterleaved, 4, 2}}) {
    on_grid(grid.pp, 1, [&](const Axis& pp, const Axis& tp) {
      TinySequence tiny({});
      PipelineModel model(tiny.sequence(), pp,
                          {.schedule = grid.kind, .stages_per_rank = grid.stages_per_rank});
      give_memory(model.local_layers());
      model.run_train(batch.micro_batches(tp), batch.loss());
      const std::lock_guard lock(mutex);
      for (const auto& p : model.parameters()) {
        const auto [at, is_new] = first.emplace(p->name(), p->leaf().grad());
        EXPECT_TRUE(is_new || at::equal(at->second, p->leaf().grad())) << grid << p->name();
      }
    });
  }
}

TEST(PipelineModel, TiedLlama_GivesTheUnsplitLossAndGradients) {
  const Json config = Json::parse(
      R"({"model_type": "llama", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
          "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
          "hidden_act": "silu", "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
          "rope_theta": 10000, "initializer_range": 0.4, "tie_word_embeddings": true})",
      "test");
  const TinyBatch batch({2, 2, 1}, 11, 5);
  const auto whole = make_model(config);
  const Unsplit want(whole->sequence(), batch);
  for (const bool sequence_parallel : {false, true}) {
    on_grid(2, 2, [&](const Axis& pp, const Axis& tp) {
      const auto llama = make_model(config);
      parallelize_module(*llama, tp, llama->plan(sequence_parallel));
      PipelineModel model(llama->sequence(), pp,
                          {.schedule = ScheduleKind::kZeroBubble,
                           .stages = stages_from_cuts(llama->sequence(), {"model.layers.1"}, 2)});
      give_memory(model.local_layers());
      EXPECT_EQ(model.tied_parameters().size(), 1U);
      expect_equals(model, tp, batch, want);
    });
  }
}

// Oracle: 256 + 1 and 0.5 + 1/256, which bf16 rounds.
TEST(PipelineModel, TiedGradientsInBf16_AreSummedInTheTypeOfTheLeaf) {
  on_grid(2, 1, [](const Axis& pp, const Axis&) {
    TinySequence tiny({.tied = true});
    PipelineModel model(tiny.sequence(), pp);
    for (Layer* layer : model.local_layers()) materialize(*layer);
    const Parameter& p = *model.tied_parameters().front();
    const auto sum = [&](double first, double second, at::ScalarType type) {
      const double own = pp.rank() == 0 ? first : second;
      p.leaf().mutable_grad() = at::full(p.shape(), own, pp.rank() == 0 ? at::kBFloat16 : type);
      model.sum_tied_gradients();
      EXPECT_EQ(p.leaf().grad().scalar_type(), at::kFloat);
      return p.leaf().grad().to(at::kDouble);
    };
    EXPECT_TRUE(sum(256, 1, at::kBFloat16).eq(257).all().item<bool>());
    EXPECT_TRUE(sum(0.5, 0x1p-8, at::kFloat).eq(0.5 + 0x1p-8).all().item<bool>());
  });
}

TEST(PipelineModel, EveryParameter_IsOwnedOnceAndHasMemoryWhereItIsUsed) {
  for (const bool tied : {false, true}) {
    std::map<std::string, int> owners, holders;
    std::mutex mutex;
    size_t num_parameters = 0;
    on_grid(3, 1, [&](const Axis& pp, const Axis&) {
      TinySequence tiny({.tied = tied});
      PipelineModel model(tiny.sequence(), pp, {.stages_per_rank = 1});
      give_memory(model.local_layers());
      const std::lock_guard lock(mutex);
      num_parameters = tiny.parameters().size();
      for (const auto& p : tiny.parameters()) {
        owners[p->name()] += p->ownership() == Parameter::Ownership::kOwned ? 1 : 0;
        holders[p->name()] += p->leaf().defined() ? 1 : 0;
      }
      for (const auto& p : model.parameters()) EXPECT_TRUE(p->leaf().defined()) << p->name();
      EXPECT_EQ(tiny.parameters().front()->ownership() == Parameter::Ownership::kOwned,
                pp.rank() == 0)
          << "the embedding";
      EXPECT_EQ(model.has_first_stage(), pp.rank() == 0);
      EXPECT_EQ(model.has_last_stage(), pp.rank() == 2);
    });
    EXPECT_EQ(owners.size(), num_parameters);
    for (const auto& [name, count] : owners) EXPECT_EQ(count, 1) << name;
    for (const auto& [name, count] : holders) {
      EXPECT_EQ(count, tied && name == "embed.weight" ? 2 : 1) << name;
    }
  }
}

TEST(PipelineModel, TiedGradients_AreTheSameBitsOnBothEnds) {
  const TinyBatch batch({2, 2, 1}, 11);
  on_grid(4, 1, [&](const Axis& pp, const Axis& tp) {
    TinySequence tiny({.tied = true});
    PipelineModel model(tiny.sequence(), pp);
    give_memory(model.local_layers());
    model.run_train(batch.micro_batches(tp), batch.loss());
    model.sum_tied_gradients();
    const bool is_end = model.has_first_stage() || model.has_last_stage();
    EXPECT_EQ(model.tied_parameters().size(), is_end ? 1U : 0U);
    Tensor first = is_end ? model.tied_parameters()[0]->leaf().grad().clone()
                          : at::zeros({11, 6}, at::kDouble);
    const Tensor own = first.clone();
    pp.broadcast_(first, 0, "test");
    EXPECT_TRUE(!is_end || at::equal(own, first));
  });
}

TEST(PipelineModel, StageOfFrozenWeights_TakesPartInTheNorm) {
  const TinyBatch batch({2, 1}, 11);
  on_grid(2, 1, [&](const Axis& pp, const Axis& tp) {
    TinySequence tiny({.num_blocks = 2});
    for (const auto& p : tiny.parameters()) {
      if (p->name() != "head.weight") p->freeze(at::kDouble);
    }
    PipelineModel model(tiny.sequence(), pp);
    give_memory(model.local_layers());
    model.run_train(batch.micro_batches(tp), batch.loss());
    Tensor want = at::zeros({1}, at::kDouble);
    for (const auto& p : model.parameters()) {
      EXPECT_EQ(p->leaf().grad().defined(), !p->is_frozen()) << p->name();
      if (!p->is_frozen()) want.fill_(p->leaf().grad().norm().item<double>());
    }
    pp.broadcast_(want, 1, "test");
    EXPECT_NEAR(clip_grad_norm(model.parameters(), 1e9).value, want.item<double>(), 1e-12);
  });
}

TEST(PipelineModel, Evaluation_GivesTheOutputsOfEveryMicroBatchThroughEveryStage) {
  const TinyBatch train({2, 2}, 11), eval({3, 1, 2}, 11);  // another batch size, uneven
  TinySequence whole({});
  give_memory(whole.sequence());
  const at::NoGradGuard no_grad;
  std::vector<Tensor> want;
  double want_loss = 0;
  const auto whole_batches = eval.micro_batches(Axis());
  for (size_t m = 0; m < whole_batches.size(); ++m) {
    DTensor x = whole_batches[m].input;
    for (Layer* layer : whole.sequence()) x = (*layer)(x, {});
    want.push_back(x.local());
    want_loss += eval.loss()(x, m).item<double>();
  }
  for (const int stages_per_rank : {1, 2}) {
    on_grid(2, 2, [&](const Axis& pp, const Axis& tp) {
      TinySequence tiny({});
      parallelize_module(tiny, tp, TinySequence::plan(Replicate{}));
      PipelineModel model(
          tiny.sequence(), pp,
          {.schedule = ScheduleKind::kInterleaved, .stages_per_rank = stages_per_rank});
      give_memory(model.local_layers());
      model.run_train(train.micro_batches(tp), train.loss());
      const auto outputs = model.run_eval(eval.micro_batches(tp));
      EXPECT_EQ(outputs.size(), model.has_last_stage() ? 3U : 0U);
      for (size_t m = 0; m < outputs.size(); ++m) {
        EXPECT_LE(test::largest_difference(outputs[m].full_tensor(), want[m]), 1e-12) << m;
        EXPECT_FALSE(outputs[m].local().requires_grad());
      }
      const auto losses = model.run_eval(eval.micro_batches(tp), eval.loss());
      EXPECT_NEAR(losses[0] + losses[1] + losses[2], want_loss, 1e-12 * want_loss);
    });
  }
}

/// Returns x and counts the calls whose backward has not run yet.
class Counting : public Layer {
 public:
  int live = 0, peak = 0;

 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    peak = std::max(peak, ++live);
    const std::shared_ptr<void> token(nullptr, [this](void*) { --live; });
    const auto same = [](const Tensor& t) { return t * 1.0; };
    return x.with(
        differentiable("count", x.local(), same, [token](const Tensor& grad) { return grad; }));
  }
};

/// x * weight: a layer for stages without an embedding.
class Scale : public Layer {
 public:
  Scale() { add("weight", weight_); }

 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    return x.with(x.local() * weight_->use());
  }

 private:
  std::shared_ptr<Parameter> weight_ =
      std::make_shared<Parameter>(std::vector<int64_t>{3}, Init::constant(0.5));
};

std::vector<MicroBatch> number_batches(int count, const Axis& tp) {
  std::vector<MicroBatch> out;
  for (int m = 0; m < count; ++m) {
    const Tensor x = test::numbers({2, 3}, static_cast<uint64_t>(m) + 1);
    out.push_back({.input = DTensor(x, tp, Replicate{})});
  }
  return out;
}

Tensor sum_of(const DTensor& output, size_t /*micro_batch*/) {
  return output.local().sum();
}

/// A model of several layers.
class Chain : public LayerGroup {
 public:
  template <class... Layers>
  explicit Chain(Layers&... layers) : sequence_{&layers...} {
    for (size_t i = 0; i < sequence_.size(); ++i) add(str("layer", i), *sequence_[i]);
    name_tree();
  }
  [[nodiscard]] const std::vector<Layer*>& sequence() const { return sequence_; }

 private:
  std::vector<Layer*> sequence_;
};

TEST(PipelineModel, OneForwardOneBackward_HoldsAsManyMicroBatchesAsItPromises) {
  for (const auto& [kind, peak_of_first] :
       {std::pair(ScheduleKind::k1F1B, 4), std::pair(ScheduleKind::kGpipe, 7)}) {
    on_grid(4, 1, [&, kind = kind, peak_of_first = peak_of_first](const Axis& pp, const Axis& tp) {
      Scale a, b, c, d;
      Counting counts[4];
      Chain chain(a, counts[0], b, counts[1], c, counts[2], d, counts[3]);
      PipelineModel model(chain.sequence(), pp,
                          {.schedule = kind, .stages = {{0, 2}, {2, 4}, {4, 6}, {6, 8}}});
      give_memory(model.local_layers());
      model.run_train(number_batches(7, tp), sum_of);
      const Counting& own = counts[pp.rank()];
      EXPECT_EQ(own.peak, kind == ScheduleKind::kGpipe ? 7 : peak_of_first - pp.rank());
      EXPECT_EQ(own.live, 0);
    });
  }
}

/// Counts the calls at which the memory of its last output was still in use.
class Watched : public Scale {
 public:
  int num_still_there = 0;

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    DTensor y = Scale::forward(x, context);
    if (last_.has_value() && !last_->expired()) ++num_still_there;
    last_ = y.local().storage().getWeakStorageImpl();
    return y;
  }

 private:
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> last_;
};

TEST(PipelineModel, OutputThatWasSent_GivesItsMemoryBack) {
  on_grid(2, 1, [](const Axis& pp, const Axis& tp) {
    Watched first;
    Scale second;
    Chain chain(first, second);
    PipelineModel model(chain.sequence(), pp,
                        {.schedule = ScheduleKind::kGpipe, .stages = {{0, 1}, {1, 2}}});
    give_memory(model.local_layers());
    model.run_train(number_batches(5, tp), sum_of);
    EXPECT_EQ(first.num_still_there, 0);
  });
}

/// Its output does not depend on x.
class IgnoresInput : public Scale {
 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    return Scale::forward(x.with(at::ones_like(x.local())), context);
  }
};

TEST(PipelineModel, StageThatIgnoresItsInput_SendsZerosBack) {
  on_grid(3, 1, [](const Axis& pp, const Axis& tp) {
    Scale first, last;
    IgnoresInput second;
    Chain chain(first, second, last);
    PipelineModel model(chain.sequence(), pp, {.stages = {{0, 1}, {1, 2}, {2, 3}}});
    give_memory(model.local_layers());
    model.run_train(number_batches(3, tp), sum_of);
    const Tensor& grad = model.parameters()[0]->leaf().grad();
    // After the first stage each of 3 x 2 rows has 1 * 0.5 as input and as factor.
    const double want = pp.rank() == 0 ? 0 : 3.0;
    EXPECT_TRUE(at::equal(grad, at::full({3}, want, at::kDouble))) << grad;
  });
}

/// Returns partial sums.
class GivesPartial : public Layer {
 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    return x.with(x.local() * 1, Partial{});
  }
};

TEST(PipelineModel, PartialSums_CannotCrossAndNameTheirMaker) {
  const Error error = thrown_by([] {
    on_grid(2, 2, [](const Axis& pp, const Axis& tp) {
      GivesPartial first;
      Scale last;
      Chain chain(first, last);
      PipelineModel model(chain.sequence(), pp, {.stages = {{0, 1}, {1, 2}}});
      give_memory(model.local_layers());
      model.run_train(number_batches(1, tp), sum_of);
    });
  });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_THAT(error.what(), testing::HasSubstr("layer0: its output is Partial and cannot cross"));
}

TEST(PipelineModel, RanksWithDifferentNumbersOfMicroBatches_AreRefused) {
  const Error error = thrown_by([] {
    on_grid(2, 1, [](const Axis& pp, const Axis& tp) {
      Scale first, last;
      Chain chain(first, last);
      PipelineModel model(chain.sequence(), pp, {.stages = {{0, 1}, {1, 2}}});
      give_memory(model.local_layers());
      model.run_train(number_batches(2 + pp.rank(), tp), sum_of);
    });
  });
  EXPECT_EQ(error.code(), Code::kDesync);
  EXPECT_THAT(error.what(), testing::HasSubstr("runs 2 micro-batches, rank 1 runs 3"));
}

// Each rank has the maker of the input, of which only the first one's would get the gradient.
TEST(PipelineModel, InputThatNeedsAGradient_IsRefusedOnSeveralRanks) {
  for (const int ranks : {1, 2}) {
    for (const bool is_named : {false, true}) {
      on_grid(ranks, 1, [&](const Axis& pp, const Axis& tp) {
        Scale first, last;
        Chain chain(first, last);
        PipelineModel model(chain.sequence(), pp);
        give_memory(model.local_layers());
        std::vector<MicroBatch> batches = number_batches(1, tp);
        const DTensor made(at::ones({2, 3}, at::kDouble).requires_grad_(), tp, Replicate{});
        if (is_named) {
          batches[0].context.values = NamedValues().with("made", made);
        } else {
          batches[0].input = made;
        }
        if (ranks == 1) {
          model.run_train(batches, sum_of);
          EXPECT_EQ(made.local().grad().defined(), !is_named);
        } else {
          const Error error = thrown_by([&] { model.run_train(batches, sum_of); });
          EXPECT_EQ(error.code(), Code::kUsage);
          EXPECT_THAT(error.what(), testing::HasSubstr("or detach it"));
        }
      });
    }
  }
}

// As generate() does.
TEST(PipelineModel, CallOfALayerOfAnotherStage_IsRefusedWithTheRemedy) {
  test::on_ranks(2, [](const Axis& pp) {
    Scale a, b;
    Chain chain(a, b);
    PipelineModel model(chain.sequence(), pp);
    give_memory(model.local_layers());
    Scale& other = pp.rank() == 0 ? b : a;
    const Error error = thrown_by([&] {
      other(DTensor(at::ones({2, 3}), Axis(), Replicate{}), Context());
    });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("its layer is in a pipeline stage of another rank; call "
                                   "run_train() or run_eval() of the PipelineModel"));
  });
}

TEST(PipelineModel, WrongUse_IsRefused) {
  Scale a, b;
  Chain chain(a, b);
  const auto make = [&](const PipelineOptions& options) {
    return thrown_by([&] { PipelineModel(chain.sequence(), Axis(), options); });
  };
  EXPECT_EQ(make({.stages_per_rank = 2}).code(), Code::kUsage) << "1f1b";
  EXPECT_EQ(make({.schedule = ScheduleKind::kGpipe, .stages_per_rank = 3}).code(), Code::kShape);
  EXPECT_EQ(make({.stages = {{0, 1}}}).code(), Code::kShape) << "a layer in no stage";
  EXPECT_EQ(make({.stages = {{0, 1}, {1, 2}}}).code(), Code::kShape) << "too many stages";
  PipelineModel model(chain.sequence(), Axis());
  give_memory(model.local_layers());
  EXPECT_EQ(thrown_by([&] { model.run_train({}, sum_of); }).code(), Code::kUsage);
  EXPECT_EQ(thrown_by([&] { model.run_train(number_batches(1, Axis()), {}); }).code(),
            Code::kUsage);
  const auto rows = [](const DTensor& y, size_t) { return y.local(); };
  EXPECT_THAT(thrown_by([&] { model.run_train(number_batches(1, Axis()), rows); }).what(),
              testing::HasSubstr("returned 6 numbers for a micro-batch; it must return one"));
}

}  // namespace
}  // namespace cleave::pipeline_model_test
