#include <map>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/parallel/gradients.h"
#include "cleave/parallel/recompute.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"
#include "tests/support/tiny_sequence.h"

// Oracle: the loss and every gradient of the same layers on one rank without a pipeline and without
// recomputation, in fp64.
namespace cleave::named_values_test {
namespace {

using test::TinyOptions;

constexpr int64_t kVocab = 11, kWidth = 6;
constexpr int64_t kSourceTokens = 5, kTokens = 3;

/// x + mlp(norm(x)), and where it reads an encoder, plus a product of the encoder's mean states.
class Block : public Layer {
 public:
  explicit Block(bool reads)
      : norm_(kWidth, 1e-5),
        mlp_({.hidden = kWidth, .intermediate = 9, .init = Init::normal(0.4)}),
        from_encoder_({.hidden = kWidth, .intermediate = 7, .init = Init::normal(0.4)}),
        reads_(reads) {
    add("norm", norm_);
    add("mlp", mlp_);
    if (reads) add("from_encoder", from_encoder_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor y = x + mlp_(norm_(x, context), context);
    if (!reads_) return y;
    const DTensor states = from_encoder_(context.values.at("encoder"), context);
    const DTensor whole = states.redistribute(Replicate{});
    const DTensor mean = whole.with(whole.local().mean(1, true).expand({-1, kTokens, -1}));
    return y + mean.redistribute(y.placement());
  }

 private:
  RmsNorm norm_;
  Mlp mlp_, from_encoder_;
  bool reads_;
};

/// Three blocks of an encoder, whose norm is named, and three of a decoder, of which the first and
/// the last read it: a stage with only the middle one passes it on.
class TwoHalves : public LayerGroup {
 public:
  TwoHalves() {
    encoder_norm_.set_output_name("encoder");
    decoder_embed_.set_input_name("decoder_ids");
    decoder_embed_.tie_weight(embed_.weight());
    add_next("embed", embed_);
    for (int i = 0; i < 6; ++i) {
      blocks_.push_back(std::make_unique<Block>(i == 3 || i == 5));
      add_next(str("blocks.", i), *blocks_.back());
      if (i != 2) continue;
      add_next("encoder_norm", encoder_norm_);
      add_next("decoder_embed", decoder_embed_);
    }
    add_next("head", head_);
    name_tree();
  }
  std::vector<Layer*> sequence;

  static Plan plan(const Placement& between) {
    return {{"{embed,decoder_embed}", Rowwise{.output = between}},
            {"blocks.*.{mlp,from_encoder}.{gate,up}_proj", Colwise{}},
            {"blocks.*.{mlp,from_encoder}.down_proj", Rowwise{.output = between}},
            {"head", Colwise{.output = Shard{-1}}}};
  }

 private:
  void add_next(const std::string& name, Layer& layer) {
    add(name, layer);
    sequence.push_back(&layer);
  }
  static EmbeddingOptions table() {
    return {.num_embeddings = kVocab, .embedding_dim = kWidth, .init = Init::normal(0.4)};
  }
  Embedding embed_{table()}, decoder_embed_{table()};
  std::vector<std::unique_ptr<Block>> blocks_;
  RmsNorm encoder_norm_{kWidth, 1e-5};
  Linear head_{{.in_features = kWidth, .out_features = kVocab, .init = Init::normal(0.4)}};
};

const std::vector<int64_t> kRows = {2, 1, 2};  // sequences of each micro-batch

std::vector<MicroBatch> batches(const Axis& tp) {
  std::vector<MicroBatch> out;
  for (size_t m = 0; m < kRows.size(); ++m) {
    const auto value = [&](int64_t num_tokens, uint64_t seed) {
      return DTensor(test::ids({kRows[m], num_tokens}, kVocab, seed + m), tp, Replicate{});
    };
    Context context;
    context.values = NamedValues().with("decoder_ids", value(kTokens, 20));
    out.push_back({.input = value(kSourceTokens, 10), .context = context});
  }
  return out;
}

Tensor loss_of(const DTensor& logits, size_t m) {
  const Tensor labels = test::ids({kRows[m], kTokens}, kVocab, 30 + m);
  return cross_entropy(logits, labels, {.valid_tokens = 5 * kTokens}).local();
}

void give_memory(const std::vector<Layer*>& layers) {
  for (Layer* layer : layers) materialize(*layer, {.seed = 1, .dtype = at::kDouble});
}

/// The loss and the gradients by name without a pipeline.
struct Whole {
  double loss = 0;
  std::map<std::string, Tensor> gradients;

  Whole() {
    TwoHalves model;
    give_memory(model.sequence);
    const auto all = batches(Axis());
    for (size_t m = 0; m < all.size(); ++m) {
      Context context = all[m].context;
      const Tensor part = loss_of(call_in_order(model.sequence, all[m].input, context), m);
      part.backward();
      loss += part.item<double>();
    }
    for (const auto& p : model.parameters()) gradients[p->name()] = p->leaf().grad();
  }
};

struct Case {
  ScheduleKind kind = ScheduleKind::k1F1B;
  int pp = 1, stages_per_rank = 1, tp = 1;
  bool recomputes = false;
  Placement between = Replicate{};
};

void expect_rank_equals(const Case& c, const Whole& want, const Axis& pp, const Axis& tp) {
  TwoHalves model;
  if (tp.size() > 1) parallelize_module(model, tp, TwoHalves::plan(c.between));
  PipelineModel pipeline(model.sequence, pp,
                         {.schedule = c.kind, .stages_per_rank = c.stages_per_rank});
  for (const size_t block : blocks_of(model.sequence)) {
    if (c.recomputes) recompute(*model.sequence[block]);
  }
  give_memory(pipeline.local_layers());
  double loss = 0;
  for (const double part : pipeline.run_train(batches(tp), loss_of)) loss += part;
  EXPECT_NEAR(loss, want.loss, 1e-12 * want.loss);
  finish_gradients(pipeline.parameters(), tp);
  pipeline.sum_tied_gradients();
  for (const auto& p : pipeline.parameters()) {
    const Tensor& whole = want.gradients.at(p->name());
    const double scale = std::max(1.0, whole.abs().max().item<double>());
    EXPECT_LE(test::largest_difference(p->leaf().grad(), test::slice_of(*p, whole)), 1e-12 * scale)
        << p->name();
  }
}

void expect_equals_whole(const Case& c, const Whole& want) {
  SCOPED_TRACE(testing::Message() << name(c.kind) << " pp=" << c.pp
                                  << " virtual=" << c.stages_per_rank << " tp=" << c.tp << " "
                                  << c.between.describe() << " recomputes=" << c.recomputes);
  test::on_world(c.pp * c.tp, [&](World& world) {
    const Mesh mesh = Mesh::build(world, {{"pp", c.pp}, {"tp", c.tp}});
    expect_rank_equals(c, want, mesh["pp"], mesh["tp"]);
  });
}

TEST(NamedValues, EverySchedule_GivesTheLossAndGradientsWithoutAPipeline) {
  const Whole want;
  for (const ScheduleKind kind : {ScheduleKind::kGpipe, ScheduleKind::k1F1B,
                                  ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble}) {
    for (const int pp : {1, 2, 3}) {
      for (const int stages_per_rank : {1, 2}) {
        if (kind == ScheduleKind::k1F1B && stages_per_rank > 1) continue;
        expect_equals_whole({kind, pp, stages_per_rank}, want);
      }
    }
  }
}

TEST(NamedValues, TensorAndSequenceParallelAndRecompute_GiveTheSame) {
  const Whole want;
  for (const Placement& between : {Placement(Replicate{}), Placement(Shard{1})}) {
    for (const bool recomputes : {false, true}) {
      for (const ScheduleKind kind : {ScheduleKind::k1F1B, ScheduleKind::kZeroBubble}) {
        // With pp=3, the encoder's states cross to the last stage.
        for (const int pp : {1, 3})
          expect_equals_whole({kind, pp, 1, 2, recomputes, between}, want);
      }
    }
  }
}

// A stage may end right behind the named layer, whose output then also crosses as its input.
TEST(NamedValues, StageThatEndsBehindTheNamedLayer_SendsItTwice) {
  const Whole want;
  test::on_ranks(2, [&](const Axis& pp) {
    TwoHalves model;
    PipelineModel pipeline(model.sequence, pp,
                           {.stages = stages_from_cuts(model.sequence, {"encoder_norm"}, 2)});
    give_memory(pipeline.local_layers());
    pipeline.run_train(batches(Axis()), loss_of);
    pipeline.sum_tied_gradients();
    for (const auto& p : pipeline.parameters()) {
      EXPECT_LE(test::largest_difference(p->leaf().grad(), want.gradients.at(p->name())), 1e-12)
          << p->name();
    }
  });
}

TEST(NamedValues, Evaluation_GivesTheLossesOfTraining) {
  const Whole want;
  test::on_ranks(3, [&](const Axis& pp) {
    TwoHalves model;
    PipelineModel pipeline(model.sequence, pp);
    give_memory(pipeline.local_layers());
    double loss = 0;
    for (const double part : pipeline.run_eval(batches(Axis()), loss_of)) loss += part;
    EXPECT_NEAR(loss, want.loss, 1e-12 * want.loss);
  });
}

}  // namespace
}  // namespace cleave::named_values_test
