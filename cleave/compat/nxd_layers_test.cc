#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/compat/nxd.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/norm.h"
#include "cleave/parallel/gradients.h"
#include "tests/support/model_parallel.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

namespace cleave::nxd_layers_test {
namespace {

using test::even_sizes;
using test::largest_difference;
using test::leaf_of;
using test::numbers;
using test::on_model_parallel;
using test::piece;
using test::thrown_by;

constexpr int64_t kIn = 6, kOut = 7;
constexpr double kTolerance = 1e-13;  // fp64, values of order 1, sums of less than 100 terms

/// The unsplit layer: plain tensors, one process.
struct Whole {
  Tensor x, weight, bias, y, upstream;

  Whole(const std::vector<int64_t>& shape, bool with_bias)
      : x(leaf_of(numbers(shape, 1))), weight(leaf_of(numbers({kOut, kIn}, 2))) {
    if (with_bias) bias = leaf_of(numbers({kOut}, 3));
    y = at::linear(x, weight, with_bias ? std::optional(bias) : std::nullopt);
    upstream = numbers(y.sizes(), 4);
    (y * upstream).sum().backward();
  }
  [[nodiscard]] test::Weights weights() const {
    test::Weights out{{"weight", weight.detach()}};
    if (bias.defined()) out.emplace("bias", bias.detach());
    return out;
  }
};

/// Compares the complete gradients of the layer's parameters with the unsplit layer's.
void expect_gradients(Layer& layer, const Whole& want, const std::string& where) {
  const Parameters parameters = layer.parameters();
  finish_gradients(parameters, nxd::get_tensor_model_parallel_group());
  for (const auto& p : parameters) {
    const Tensor& whole = p->name() == "bias" ? want.bias : want.weight;
    EXPECT_LE(largest_difference(p->leaf().grad(), test::slice_of(*p, whole.grad())), kTolerance)
        << p->name() << where;
  }
}

/// This rank's shards of X and Y.
struct Sharding {
  std::function<Tensor(const Tensor&)> x, y;
};

/// Called on this rank's shard of X, the layer gives this rank's shards of Y and of all gradients.
template <class L>
void expect_equals(L& layer, const Whole& want, const Sharding& shard, const std::string& where) {
  test::fill(layer, want.weights(), at::kDouble);
  const Tensor x = leaf_of(shard.x(want.x));
  const Tensor y = layer(x);
  EXPECT_LE(largest_difference(y, shard.y(want.y)), kTolerance) << "output" << where;
  (y * shard.y(want.upstream)).sum().backward();
  EXPECT_LE(largest_difference(x.grad(), shard.x(want.x.grad())), kTolerance) << "input" << where;
  expect_gradients(layer, want, where);
}

Tensor unsharded(const Tensor& t) {
  return t;
}
std::function<Tensor(const Tensor&)> columns_of(int64_t whole) {
  return [sizes = even_sizes(whole)](const Tensor& t) { return piece(t, -1, sizes); };
}

void on_every_layout(const std::function<void(const Whole&, const std::string&)>& body) {
  for (const int tp : {1, 2, 3, 4}) {
    for (const bool bias : {true, false}) {
      for (const auto& shape : {std::vector<int64_t>{5, kIn}, std::vector<int64_t>{2, 5, kIn}}) {
        const Whole want(shape, bias);
        on_model_parallel(tp, 1, [&] {
          body(want, str(" tp=", tp, " rank=", nxd::get_tensor_model_parallel_rank(),
                         " bias=", bias, " dims=", shape.size()));
        });
      }
    }
  }
}

// Oracle: the unsplit layer in fp64. 7 columns on 2, 3 and 4 ranks are uneven.
TEST(ColumnParallelLinear, WithAndWithoutGather_IsTheUnsplitLayer) {
  on_every_layout([](const Whole& want, const std::string& where) {
    const bool bias = want.bias.defined();
    nxd::ColumnParallelLinear gathered(kIn, kOut, {.bias = bias});
    expect_equals(gathered, want, {unsharded, unsharded}, " gathered" + where);
    nxd::ColumnParallelLinear sharded(kIn, kOut, {.bias = bias, .gather_output = false});
    expect_equals(sharded, want, {unsharded, columns_of(kOut)}, " sharded" + where);
  });
}

TEST(RowParallelLinear, OfWholeAndOfShardedInput_IsTheUnsplitLayer) {
  on_every_layout([](const Whole& want, const std::string& where) {
    const bool bias = want.bias.defined();
    nxd::RowParallelLinear of_whole(kIn, kOut, {.bias = bias});
    expect_equals(of_whole, want, {unsharded, unsharded}, " whole input" + where);
    nxd::RowParallelLinear sharded(kIn, kOut, {.bias = bias, .input_is_parallel = true});
    expect_equals(sharded, want, {columns_of(kIn), unsharded}, " sharded input" + where);
  });
}

// Oracle: the unsplit layer. The lengths per rank are first near-equal, then uneven with an empty
// one.
TEST(ParallelLinears, UnderSequenceParallelWithUnevenLengths_AreTheUnsplitLayer) {
  on_every_layout([](const Whole& want, const std::string& where) {
    const bool bias = want.bias.defined();
    const int64_t dim = want.x.dim() - 2;
    const auto tokens_of = [dim](const std::vector<int64_t>& sizes) {
      return [dim, sizes](const Tensor& t) { return piece(t, dim, sizes); };
    };
    std::vector<int64_t> odd(static_cast<size_t>(nxd::get_tensor_model_parallel_size()), 0);
    odd.back() = 4;
    odd.front() += 1;
    for (const auto& sizes : {even_sizes(5), odd}) {
      nxd::ColumnParallelLinear column(
          kIn, kOut, {.bias = bias, .gather_output = false, .sequence_parallel_enabled = true});
      expect_equals(column, want, {tokens_of(sizes), columns_of(kOut)}, " column" + where);
    }
    nxd::RowParallelLinear row(
        kIn, kOut, {.bias = bias, .input_is_parallel = true, .sequence_parallel_enabled = true});
    expect_equals(row, want, {columns_of(kIn), tokens_of(even_sizes(5))}, " row" + where);
  });
}

/// x + down(tanh(up(norm(x)))) of an embedding; with `sp` each rank has some tokens between the
/// layers.
struct SequenceNet : LayerGroup {
  explicit SequenceNet(bool sp)
      : is_split(sp),
        embed(9, kIn, {.dtype = at::kDouble, .sequence_parallel_enabled = sp}),
        norm(kIn, 1e-5),
        up(kIn, kOut,
           {.gather_output = false, .sequence_parallel_enabled = sp, .dtype = at::kDouble}),
        down(kOut, kIn,
             {.input_is_parallel = true, .sequence_parallel_enabled = sp, .dtype = at::kDouble}) {
    add("embed", embed);
    add("norm", norm);
    add("up", up);
    add("dropout", dropout);
    add("down", down);
  }
  Tensor operator()(const Tensor& ids, const Context& context) {
    const Tensor x = embed(ids);
    if (!is_split) return x + nxd::call(dropout, down(up(nxd::call(norm, x)).tanh()), context);
    const Tensor wide = up(nxd::call_on_tokens(norm, x)).tanh();
    const Tensor y = x + nxd::call_on_tokens(dropout, down(wide), context);
    return nxd::gather_from_sequence_parallel_region(y, 1, /*to_model_parallel=*/false);
  }
  bool is_split;
  nxd::ParallelEmbedding embed;
  LayerNorm norm;
  nxd::ColumnParallelLinear up;
  nxd::RowParallelLinear down;
  Dropout dropout{0.25};
};

// Oracle: the same on one rank. 7 tokens are uneven on 2, 3 and 4 ranks.
TEST(CallOnTokens, BetweenSequenceParallelLayers_GivesResultAndGradientsOfOneRank) {
  const Context training{.training = true, .seed = 2, .step = 1};
  const Tensor ids = test::ids({2, 7}, 9, 5), upstream = numbers({2, 7, kIn}, 6);
  Tensor want;
  test::Weights gradients;
  for (const int tp : {1, 2, 3, 4}) {
    on_model_parallel(tp, 1, [&] {
      SequenceNet net(/*sp=*/tp > 1);
      nxd::move_model_to_device(net, at::kCPU, {.seed = 3, .dtype = at::kDouble});
      const Tensor y = net(ids, training);
      (y * upstream).sum().backward();
      const Parameters parameters = net.parameters();
      nxd::clip_grad_norm(parameters, 1e9);
      if (tp == 1) {
        want = y.detach();
        for (const auto& p : parameters) gradients[p->name()] = p->leaf().grad();
        return;
      }
      EXPECT_LE(largest_difference(y, want), kTolerance) << tp;
      for (const auto& p : parameters) {
        const Tensor part = test::slice_of(*p, gradients.at(p->name()));
        EXPECT_LE(largest_difference(p->leaf().grad(), part), kTolerance) << p->name() << tp;
      }
      EXPECT_EQ(thrown_by([&] { nxd::call_on_tokens(net.up, upstream); }).code(), Code::kShape);
    });
  }
}

TEST(ParallelLinears, SequenceDimensionZero_ShardsSequenceFirstTensors) {
  const Whole want({5, 2, kIn}, true);
  on_model_parallel(3, 1, [&] {
    const auto tokens = [](const Tensor& t) { return piece(t, 0, even_sizes(5)); };
    nxd::ColumnParallelLinear column(
        kIn, kOut,
        {.gather_output = false, .sequence_parallel_enabled = true, .sequence_dimension = 0});
    expect_equals(column, want, {tokens, columns_of(kOut)}, " column");
    nxd::RowParallelLinear row(
        kIn, kOut,
        {.input_is_parallel = true, .sequence_parallel_enabled = true, .sequence_dimension = 0});
    expect_equals(row, want, {columns_of(kIn), tokens}, " row");
  });
}

// Oracle: two separate matrices, each sharded by itself.
TEST(ParallelLinears, Stride_ShardsEachFusedMatrixByItself) {
  for (const int tp : {1, 2, 3}) {
    on_model_parallel(tp, 1, [&] {
      const Tensor up = numbers({5, kIn}, 5), gate = numbers({5, kIn}, 6), x = numbers({4, kIn}, 7);
      nxd::ColumnParallelLinear fused(kIn, 10,
                                      {.bias = false, .gather_output = false, .stride = 2});
      test::fill(fused, {{"weight", at::cat({up, gate})}}, at::kDouble);
      const Tensor want = at::cat({piece(at::linear(x, up), -1, even_sizes(5)),
                                   piece(at::linear(x, gate), -1, even_sizes(5))},
                                  -1);
      EXPECT_LE(largest_difference(fused(x), want), kTolerance) << tp;

      const Tensor down = numbers({3, 10}, 8);
      nxd::RowParallelLinear row(10, 3, {.bias = false, .input_is_parallel = true, .stride = 2});
      test::fill(row, {{"weight", down}}, at::kDouble);
      const Tensor whole = at::cat({at::linear(x, up), at::linear(x, gate)}, -1);
      EXPECT_LE(largest_difference(row(want), at::linear(whole, down)), kTolerance) << tp;
    });
  }
}

// Oracle: the unsplit layer, to whose output the caller also adds the bias.
TEST(ParallelLinears, SkipBiasAdd_LeavesTheBiasAndItsGradientToTheCaller) {
  on_every_layout([](const Whole& want, const std::string& where) {
    if (!want.bias.defined()) return;
    const auto expect_skipped = [&](auto& layer, const Sharding& shard, const std::string& kind) {
      test::fill(layer, want.weights(), at::kDouble);
      const Tensor x = shard.x(want.x).detach();
      const Tensor y = layer(x) + layer.bias()->use();
      EXPECT_LE(largest_difference(y, shard.y(want.y)), kTolerance) << kind << where;
      (y * shard.y(want.upstream)).sum().backward();
      expect_gradients(layer, want, kind + where);
    };
    const auto tokens = [dim = want.x.dim() - 2](const Tensor& t) {
      return piece(t, dim, even_sizes(5));
    };
    nxd::ColumnParallelLinear gathered(kIn, kOut, {.skip_bias_add = true});
    expect_skipped(gathered, {unsharded, unsharded}, " gathered");
    nxd::ColumnParallelLinear sharded(kIn, kOut, {.gather_output = false, .skip_bias_add = true});
    expect_skipped(sharded, {unsharded, columns_of(kOut)}, " sharded");
    nxd::RowParallelLinear row(kIn, kOut, {.skip_bias_add = true});
    expect_skipped(row, {unsharded, unsharded}, " row");
    nxd::RowParallelLinear scattered(
        kIn, kOut,
        {.input_is_parallel = true, .sequence_parallel_enabled = true, .skip_bias_add = true});
    expect_skipped(scattered, {columns_of(kIn), tokens}, " sequence parallel row");
  });
}

TEST(RowParallelLinear, WithoutReduceOutput_GivesPartialSums) {
  const Whole want({2, 5, kIn}, false);
  on_model_parallel(3, 1, [&] {
    nxd::RowParallelLinear row(kIn, kOut,
                               {.bias = false, .input_is_parallel = true, .reduce_output = false});
    test::fill(row, want.weights(), at::kDouble);
    const Tensor part = row(columns_of(kIn)(want.x));
    const Tensor sum = nxd::reduce_from_tensor_model_parallel_region(part);
    EXPECT_LE(largest_difference(sum, want.y), kTolerance);
  });
}

// Oracle: rows of the whole table, gathered by at::embedding in one process.
TEST(ParallelEmbedding, ShardedByRowsOrColumns_IsTheUnsplitTable) {
  const Tensor ids = test::ids({2, 5}, 9, 1);
  const Tensor table = leaf_of(numbers({9, 5}, 2));
  const Tensor y = at::embedding(table, ids);
  const Tensor upstream = numbers(y.sizes(), 3);
  (y * upstream).sum().backward();
  for (const int tp : {1, 2, 3, 4}) {
    on_model_parallel(tp, 1, [&] {
      const auto tokens = [](const Tensor& t) { return piece(t, 1, even_sizes(5)); };
      for (const bool columns : {false, true}) {
        for (const bool sequence : {false, true}) {
          nxd::ParallelEmbedding embedding(
              9, 5, {.shard_across_embedding = columns, .sequence_parallel_enabled = sequence});
          test::fill(embedding, {{"weight", table.detach()}}, at::kDouble);
          const Tensor got = embedding(ids);
          const Tensor mine = sequence ? tokens(upstream) : upstream;
          EXPECT_EQ(largest_difference(got, sequence ? tokens(y) : y), 0) << tp << columns;
          (got * mine).sum().backward();
          const auto& p = embedding.weight();
          EXPECT_LE(largest_difference(p->leaf().grad(), test::slice_of(*p, table.grad())),
                    kTolerance)
              << "tp=" << tp << " columns=" << columns << " sequence=" << sequence;
        }
        nxd::ParallelEmbedding part(9, 5,
                                    {.shard_across_embedding = columns, .collect_output = false});
        test::fill(part, {{"weight", table.detach()}}, at::kDouble);
        const Tensor whole = columns ? nxd::gather_from_tensor_model_parallel_region(part(ids))
                                     : nxd::reduce_from_tensor_model_parallel_region(part(ids));
        EXPECT_EQ(largest_difference(whole, y), 0) << tp << columns;
      }
      nxd::ParallelEmbedding embedding(9, 5);
      move_model_to_device(embedding, at::kCPU);
      EXPECT_EQ(thrown_by([&] { embedding(at::full({1, 1}, 9)); }).code(), Code::kShape);
    });
  }
}

TEST(ParallelEmbedding, PaddingRow_StartsAsZerosAndGetsNoGradient) {
  for (const int64_t padding : {int64_t{0}, int64_t{-2}}) {
    on_model_parallel(3, 1, [&] {
      nxd::ParallelEmbedding embedding(9, 4, {.padding_idx = padding});
      nxd::move_model_to_device(embedding, at::kCPU);
      const int64_t row = padding < 0 ? padding + 9 : padding;
      const Tensor ids = at::tensor({row, int64_t{3}, row}).view({1, 3});
      const Tensor y = embedding(ids);
      EXPECT_EQ(y[0][0].abs().max().item<double>(), 0);
      EXPECT_GT(y[0][1].abs().max().item<double>(), 0);
      y.sum().backward();
      Tensor want = at::zeros({9, 4});
      want[3] = 1;
      const auto& p = embedding.weight();
      EXPECT_TRUE(at::equal(p->leaf().grad(), test::slice_of(*p, want)));
    });
  }
}

// Oracle: the layers on one rank; and the bounds and deviations that torch documents.
TEST(ParallelLayers, InitialValues_AreTheSameOnEveryLayoutAndThoseOfTorch) {
  struct Model : LayerGroup {
    Model() {
      add("embed", embed);
      add("up", up);
      add("down", down);
      add("norm", norm);
    }
    nxd::ParallelEmbedding embed{64, 100};
    nxd::ColumnParallelLinear up{100, 30, {.dtype = at::kDouble}};
    nxd::RowParallelLinear down{30, 100, {.init_method = Init::normal(0.5)}};
    LayerNorm norm{100, 1e-5};
  };
  std::map<std::string, Tensor> want;
  on_model_parallel(1, 1, [&] {
    Model model;
    nxd::move_model_to_device(model, at::kCPU, {.seed = 4});
    for (const auto& p : model.parameters()) want.emplace(p->name(), p->leaf().detach());
  });
  EXPECT_EQ(want.at("up.weight").scalar_type(), at::kDouble);
  EXPECT_EQ(want.at("down.weight").scalar_type(), at::kFloat);
  const auto largest = [&](const char* name) { return want.at(name).abs().max().item<double>(); };
  EXPECT_LE(largest("up.weight"), 0.1);  // 1 / sqrt(100)
  EXPECT_GT(largest("up.weight"), 0.099);
  EXPECT_LE(largest("down.bias"), 1 / std::sqrt(30.0));
  EXPECT_GT(largest("down.bias"), 0.9 / std::sqrt(30.0));
  // The standard deviation of n numbers is within 5 / sqrt(2 n) of the true one.
  EXPECT_NEAR(want.at("embed.weight").std().item<double>(), 1, 5 / std::sqrt(12800.0));
  EXPECT_NEAR(want.at("down.weight").std().item<double>(), 0.5, 2.5 / std::sqrt(6000.0));
  for (const int tp : {2, 3, 4}) {
    on_model_parallel(tp, 1, [&] {
      Model model;
      nxd::move_model_to_device(model, at::kCPU, {.seed = 4});
      for (const auto& p : model.parameters()) {
        EXPECT_TRUE(at::equal(p->leaf(), test::slice_of(*p, want.at(p->name())))) << p->name();
      }
    });
  }
}

TEST(ParallelLayers, RefusedOptionsAndWrongCalls_SayTheRemedy) {
  const auto text = [](const auto& action, Code code) {
    const Error error = thrown_by(action);
    EXPECT_EQ(error.code(), code) << error.what();
    return std::string(error.what());
  };
  using Column = nxd::ColumnParallelLinear;
  using Row = nxd::RowParallelLinear;
  EXPECT_NE(text([] { Column(4, 4); }, Code::kUsage).find("initialize_model_parallel"),
            std::string::npos);
  on_model_parallel(2, 1, [&] {
    const auto has = [](const std::string& message, const char* part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    has(text([] { Column(4, 4, {.sequence_parallel_enabled = true}); }, Code::kUsage),
        "gather_output=false");
    has(text([] { Row(4, 4, {.sequence_parallel_enabled = true}); }, Code::kUsage),
        "input_is_parallel=true");
    has(text([] { Column(4, 4, {.keep_master_weight = true}); }, Code::kUsage),
        "keep_master_weight");
    has(text([] { Column(4, 4, {.pad = true}); }, Code::kUsage), "need not be divisible");
    has(text([] { Row(4, 4, {.pad = true}); }, Code::kUsage), "need not be divisible");
    has(text([] { Row(4, 4, {.reduce_output = false}); }, Code::kUsage), "skip_bias_add");
    has(text([] { Column(4, 5, {.stride = 2}); }, Code::kShape), "stride=2");
    has(text([] { nxd::ParallelEmbedding(4, 4, {.padding_idx = 4}); }, Code::kShape),
        "padding_idx=4");
    Column column(4, 4);
    has(text([&] { column(at::zeros({2, 4})); }, Code::kUsage), "move_model_to_device");
    nxd::move_model_to_device(column, at::kCPU);
    has(text([&] { column(at::zeros({4})); }, Code::kShape), "[.., tokens, width]");
    has(text([&] { column(at::zeros({2, 3})); }, Code::kShape), "in_features=4");
    Row row(4, 4, {.input_is_parallel = true});
    nxd::move_model_to_device(row, at::kCPU);
    has(text([&] { row(at::zeros({2, 4})); }, Code::kShape), "takes 2 columns");
    Row whole(4, 4);
    nxd::move_model_to_device(whole, at::kCPU);
    has(text([&] { whole(at::zeros({2, 3})); }, Code::kShape), "takes 4 columns");
    Column sharded(4, 4, {.gather_output = false});
    nxd::move_model_to_device(sharded, at::kCPU);
    has(text([&] { nxd::call(sharded, at::zeros({2, 4})); }, Code::kShape), "is sharded");
  });
}

// Oracle: the whole table. Tied to columns, the head would return partial sums that look like
// logits.
TEST(ColumnParallelLinear, TiedToATable_IsRefusedUnlessRowsAreSharded) {
  struct Tied : LayerGroup {
    Tied(bool by_columns, bool gather)
        : table(9, 4, {.dtype = at::kDouble, .shard_across_embedding = by_columns}),
          head(4, 9, {.bias = false, .gather_output = gather, .dtype = at::kDouble}) {
      add("table", table);
      add("head", head);
      head.tie_weight(table.weight());
    }
    nxd::ParallelEmbedding table;
    nxd::ColumnParallelLinear head;
  };
  const Tensor whole = numbers({9, 4}, 1), x = numbers({2, 3, 4}, 2);
  on_model_parallel(2, 1, [&] {
    for (const bool by_columns : {false, true}) {
      for (const bool gather : {false, true}) {
        Tied tied(by_columns, gather);
        test::fill(tied, {{"table.weight", whole}}, at::kDouble);
        if (by_columns && !gather) {
          const Error error = thrown_by([&] { tied.head(x); });
          EXPECT_EQ(error.code(), Code::kShape);
          EXPECT_NE(std::string(error.what()).find("shard_across_embedding"), std::string::npos);
          continue;
        }
        const Tensor want = at::linear(x, whole);
        EXPECT_LE(largest_difference(tied.head(x), gather ? want : columns_of(9)(want)), kTolerance)
            << by_columns << gather;
      }
    }
  });
}

// Oracle: the same layers on plain tensors.
TEST(ParallelLayers, OnDTensors_AreTheSameLayers) {
  on_model_parallel(3, 1, [] {
    const Axis& tp = nxd::get_tensor_model_parallel_group();
    nxd::ColumnParallelLinear up(kIn, kOut, {.gather_output = false, .dtype = at::kDouble});
    nxd::RowParallelLinear down(kOut, kIn, {.input_is_parallel = true, .dtype = at::kDouble});
    nxd::move_model_to_device(up, at::kCPU);
    nxd::move_model_to_device(down, at::kCPU);
    const Tensor x = numbers({2, 5, kIn}, 1);
    const DTensor y = down(up(DTensor(x, tp, Replicate{}), {}), {});
    EXPECT_TRUE(y.placement().is_replicate());
    EXPECT_TRUE(at::equal(y.local(), down(up(x))));
  });
}

// Oracle: the unsplit layer, on the data-parallel group of two in a world of four.
TEST(ParallelLayers, OverAnotherGroup_AreShardedOverThatGroup) {
  const Whole want({2, 5, kIn}, true);
  on_model_parallel(2, 2, [&] {
    nxd::ColumnParallelLinear column(
        kIn, kOut, {.tensor_model_parallel_group = nxd::get_data_parallel_group()});
    test::fill(column, want.weights(), at::kDouble);
    EXPECT_EQ(column.weight()->local_shape()[0], nxd::get_data_parallel_rank() == 0 ? 4 : 3);
    EXPECT_LE(largest_difference(column(want.x), want.y), kTolerance);
  });
}

}  // namespace
}  // namespace cleave::nxd_layers_test
