#include "cleave/parallel/gradient_sync.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/recompute.h"
#include "tests/support/counting_group.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: bit for bit, the same sums after backward (begin was not called), and the plain
// functions finish_gradients and sum_gradients.
namespace cleave::gradient_sync_test {
namespace {

constexpr int64_t kBucketBytes = 2048;  // a few parameters
const char* const kConfig = R"json({"model_type": "llama", "vocab_size": 23, "hidden_size": 12,
  "intermediate_size": 17, "num_hidden_layers": 3, "num_attention_heads": 3,
  "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 32,
  "tie_word_embeddings": true})json";

std::unique_ptr<Model> model_on(const Axis& tp) {
  auto model = make_model(Json::parse(kConfig, "config.json"));
  parallelize_module(*model, tp, model->plan(tp.size() > 1));
  return model;
}

/// Backward of one micro-batch of this rank; each rank has different sequences.
void backward(Model& model, const Axis& dp, const Axis& tp, int64_t micro_batch) {
  const auto seed = static_cast<uint64_t>(10 * micro_batch + dp.rank());
  const Tensor ids = test::ids({2, 5}, 23, seed);
  const DTensor logits = model(DTensor(ids, tp, Replicate{}), Context());
  cross_entropy(logits, next_token_labels(ids), {.valid_tokens = 32}).local().backward();
}

std::vector<Tensor> gradients_of(Model& model) {
  std::vector<Tensor> out;
  for (const auto& p : model.parameters()) out.push_back(p->leaf().grad().clone());
  return out;
}

void expect_same(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
}

struct Case {
  DataSharding sharding = DataSharding::kNone;
  bool recomputes = false;
  at::ScalarType param = at::kFloat;
  int tp = 1;
};

/// Gradients of two micro-batches, with buckets that start during backward or after it.
std::vector<Tensor> summed(const Case& c, const Axis& dp, const Axis& tp, bool during_backward) {
  const auto model = model_on(tp);
  if (c.recomputes) recompute(*model->sequence()[1]);
  const auto sync = std::make_shared<GradientSync>(
      model->parameters(), dp,
      GradientSyncOptions{.sharding = c.sharding,
                          .precision = ShardPrecision{.param = c.param, .reduce = at::kFloat},
                          .bucket_bytes = kBucketBytes});
  sum_during_backward(sync, model->sequence());
  materialize(*model, {.seed = 5});
  sync->refresh_weights();
  for (int step = 0; step < 2; ++step) {
    for (const auto& p : model->parameters()) p->leaf().mutable_grad().reset();
    sync->begin(during_backward ? 2 : 0);
    for (int64_t m = 0; m < 2; ++m) backward(*model, dp, tp, m);
    EXPECT_TRUE(c.sharding == DataSharding::kNone || sync->has_incomplete_gradients());
    sync->complete();
    EXPECT_FALSE(sync->has_incomplete_gradients());
  }
  return gradients_of(*model);
}

void on_mesh(int dp, int tp, const std::function<void(const Axis&, const Axis&)>& body) {
  test::on_world(dp * tp, [&](World& world) {
    const Mesh mesh = Mesh::build(world, {{"dp", dp}, {"tp", tp}});
    body(mesh["dp"], mesh["tp"]);
  });
}

TEST(GradientSync, SumsDuringBackward_EqualSumsAfterIt) {
  for (const Case& c :
       {Case{}, Case{.recomputes = true}, Case{.param = at::kBFloat16},
        Case{.sharding = DataSharding::kZero1},
        Case{.sharding = DataSharding::kZero1, .param = at::kBFloat16}, Case{.tp = 2},
        Case{.sharding = DataSharding::kZero1, .recomputes = true, .tp = 2}}) {
    on_mesh(2, c.tp, [&](const Axis& dp, const Axis& tp) {
      expect_same(summed(c, dp, tp, true), summed(c, dp, tp, false));
    });
  }
}

TEST(GradientSync, Sums_EqualThePlainFunctions) {
  for (const int ranks_of_tp : {1, 2}) {
    on_mesh(2, ranks_of_tp, [&](const Axis& dp, const Axis& tp) {
      const auto model = model_on(tp);
      materialize(*model, {.seed = 5});
      for (int64_t m = 0; m < 2; ++m) backward(*model, dp, tp, m);
      finish_gradients(model->parameters(), tp);
      sum_gradients(model->parameters(), dp);
      expect_same(summed({.tp = ranks_of_tp}, dp, tp, true), gradients_of(*model));
    });
  }
}

// Oracle: the bf16 gradients of single micro-batches, summed here in fp32.
TEST(GradientSync, GradientsOfBf16Weights_AddUpInFp32) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kZero1}) {
    on_mesh(1, 1, [&](const Axis& dp, const Axis& tp) {
      const auto one = [&](const std::vector<int64_t>& micro_batches) {
        const auto model = model_on(tp);
        GradientSync sync(
            model->parameters(), dp,
            {.sharding = sharding,
             .precision = ShardPrecision{.param = at::kBFloat16, .reduce = at::kFloat}});
        materialize(*model, {.seed = 5});
        sync.refresh_weights();
        for (const int64_t m : micro_batches) backward(*model, dp, tp, m);
        sync.complete();
        return gradients_of(*model);
      };
      std::vector<int64_t> all(40);
      std::vector<Tensor> want;
      for (int64_t m = 0; m < 40; ++m) {
        all[static_cast<size_t>(m)] = m;
        const auto each = one({m});
        if (want.empty()) want.resize(each.size());
        for (size_t i = 0; i < each.size(); ++i) {
          EXPECT_EQ(each[i].scalar_type(), at::kBFloat16);  // there is nothing to add
          const Tensor wide = each[i].to(at::kFloat);
          want[i] = want[i].defined() ? want[i] + wide : wide;
        }
      }
      expect_same(one(all), want);
    });
  }
}

TEST(GradientSync, Buckets_StartOnceEachInTheLastBackward) {
  on_mesh(2, 1, [](const Axis& dp, const Axis& tp) {
    const auto counting = std::make_shared<test::CountingGroup>(dp.group());
    const auto model = model_on(tp);
    const auto sync = std::make_shared<GradientSync>(
        model->parameters(), Axis(counting), GradientSyncOptions{.bucket_bytes = kBucketBytes});
    sum_during_backward(sync, model->sequence());
    materialize(*model, {.seed = 5});
    sync->begin(2);
    backward(*model, dp, tp, 0);
    EXPECT_EQ(counting->taken()["all_reduce"], 0);
    backward(*model, dp, tp, 1);
    const int early = counting->taken()["all_reduce"];
    sync->complete();
    const int late = counting->taken()["all_reduce"];
    // No layer comes before the embedding, which is tied to the head.
    EXPECT_GE(early, 3);
    EXPECT_GE(late, 1);
    EXPECT_LE(late, 2);
  });
}

// The sum over dp is what a training loop of one's own can forget.
TEST(GradientSync, GradientsThatWereNotSummedOverDp_AreRefusedByNormClipAndStep) {
  for (const bool has_memory : {false, true}) {
    on_mesh(2, 1, [&](const Axis& dp, const Axis& tp) {
      const auto model = model_on(tp);
      const Parameters parameters = model->parameters();
      if (has_memory) materialize(*model, {.seed = 5});
      auto sync = std::make_unique<GradientSync>(parameters, dp);
      if (!has_memory) materialize(*model, {.seed = 5});
      Optimizer optimizer(parameters, {});
      if (!has_memory) sync->begin(1);  // the constructor saw no leaves
      backward(*model, dp, tp, 0);
      const std::vector<std::function<void()>> uses{
          [&] { (void)gradient_norm(parameters, tp); }, [&] { clip_gradients(parameters, 2, 1); },
          [&] { (void)clip_grad_norm(parameters, 1); }, [&] { optimizer.step(0.1); }};
      for (const auto& each : uses) {
        const Error error = test::thrown_by(each);
        EXPECT_EQ(error.code(), Code::kUsage);
        EXPECT_NE(std::string(error.what()).find("call complete() of the GradientSync"),
                  std::string::npos)
            << error.what();
      }
      sync->complete();
      for (const auto& each : uses) each();
      EXPECT_EQ(test::thrown_by([&] { sync->begin(1); }).code(), Code::kUsage);  // stale gradients
      optimizer.zero_grad();
      sync.reset();  // nobody sums over dp any more: the ranks train on their own
      backward(*model, dp, tp, 1);
      for (const auto& each : uses) each();
    });
  }
}

/// A model with FSDP or a GradientSync of the default precision, whose leaves have a type.
struct Defaults {
  std::unique_ptr<Model> model = model_on({});
  std::unique_ptr<GradientSync> sync;

  Defaults(DataSharding sharding, const Axis& dp, at::ScalarType type) {
    if (sharding == DataSharding::kFsdp) {
      fully_shard(model->sequence(), dp);
    } else {
      sync = std::make_unique<GradientSync>(model->parameters(), dp,
                                            GradientSyncOptions{.sharding = sharding});
    }
    materialize(*model, {.seed = 5, .dtype = type});
  }
  [[nodiscard]] DTensor logits() const {
    return (*model)(DTensor(test::ids({2, 5}, 23, 1), Axis(), Replicate{}), Context());
  }
};

// Oracle: a model that is not sharded, whose forward is in the type of its leaves.
TEST(ShardPrecision, OfLeavesInBf16_IsNoWider) {
  for (const DataSharding sharding :
       {DataSharding::kNone, DataSharding::kZero1, DataSharding::kFsdp}) {
    on_mesh(2, 1, [&](const Axis& dp, const Axis& tp) {
      const auto whole = model_on(tp);
      materialize(*whole, {.seed = 5, .dtype = at::kBFloat16});
      const Defaults some(sharding, dp, at::kBFloat16);
      if (some.sync) some.sync->refresh_weights();
      const Tensor logits = some.logits().local();
      EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(logits.equal(
          (*whole)(DTensor(test::ids({2, 5}, 23, 1), Axis(), Replicate{}), Context()).local()));
    });
  }
}

TEST(ShardPrecision, OfLeavesInFp64_IsRefusedIfItIsNarrower) {
  for (const DataSharding sharding :
       {DataSharding::kNone, DataSharding::kZero1, DataSharding::kFsdp}) {
    const Defaults some(sharding, Axis(), at::kDouble);
    std::vector<std::function<void()>> calls{[&] { (void)some.logits(); }};
    if (some.sync) {
      calls = {[&] { some.sync->refresh_weights(); }, [&] { some.sync->begin(1); },
               [&] { some.sync->complete(); }};
    }
    for (const auto& call : calls) {
      const Error error = test::thrown_by(call);
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_NE(std::string(error.what()).find("is in fp64"), std::string::npos) << error.what();
    }
  }
}

// One element of the last weight differs, by one bit. Forward reads the leaves themselves without
// refresh_weights().
TEST(GradientSync, RanksWithDifferentWeights_AreRefusedBeforeTheFirstSum) {
  for (const bool refreshes : {false, true}) {
    on_mesh(3, 1, [&](const Axis& dp, const Axis& tp) {
      const auto model = model_on(tp);
      GradientSync sync(model->parameters(), dp,
                        {.precision = ShardPrecision{.param = at::kFloat, .reduce = at::kFloat}});
      materialize(*model, {.seed = 5});
      const auto last = model->parameters().back();
      if (dp.rank() == 1) last->leaf().detach().view(at::kInt).view(-1)[0].add_(1);
      const Error error = test::thrown_by([&] {
        if (refreshes) sync.refresh_weights();
        sync.begin(1);
        backward(*model, dp, tp, 0);
        sync.complete();
      });
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_NE(std::string(error.what()).find(last->name() + " differs between data-parallel"),
                std::string::npos)
          << error.what();
    });
  }
}

struct Sharding {
  bool as_list = false;      // each layer gathers for the next one
  bool has_partial = false;  // an incomplete forward after each micro-batch, before weights change
};

std::vector<Tensor> sharded(const Axis& dp, const Sharding& how) {
  const auto model = model_on({});
  const FsdpOptions options{.precision = {.param = at::kFloat, .reduce = at::kFloat}};
  if (how.as_list) {
    fully_shard(model->sequence(), dp, options);
  } else {
    for (Layer* layer : model->sequence()) fully_shard(*layer, dp, options);
  }
  materialize(*model, {.seed = 5});
  for (int64_t m = 0; m < 2; ++m) {
    backward(*model, dp, {}, m);
    if (!how.has_partial) continue;
    const at::NoGradGuard no_grad;
    // The next forward has other weights.
    const DTensor x(test::ids({1, 4}, 23, 1), Axis(), Replicate{});
    (void)(*model->sequence()[0])(x, Context());
    for (const auto& p : model->parameters()) p->leaf().detach().mul_(1.5);
  }
  return gradients_of(*model);
}

TEST(FullyShard, PrefetchOfTheNextLayer_ChangesNothing) {
  for (const bool has_partial : {false, true}) {
    on_mesh(2, 1, [&](const Axis& dp, const Axis&) {
      expect_same(sharded(dp, {.as_list = true, .has_partial = has_partial}),
                  sharded(dp, {.has_partial = has_partial}));
    });
  }
}

}  // namespace
}  // namespace cleave::gradient_sync_test
