#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/compat/nxd.h"
#include "cleave/parallel/gradients.h"
#include "tests/support/model_parallel.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

namespace cleave::nxd_pad_test {
namespace {

using test::largest_difference;
using test::leaf_of;
using test::numbers;
using test::on_model_parallel;
using test::thrown_by;

constexpr int64_t kHidden = 10, kWidth = 4;

/// softmax(q k^T / sqrt(K)) v over heads of width K. q, k, v [B, T, H*K]
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, int64_t num_heads) {
  const auto heads = [&](const Tensor& t) {
    return t.view({t.size(0), t.size(1), num_heads, t.size(2) / num_heads}).transpose(1, 2);
  };
  return at::scaled_dot_product_attention(heads(q), heads(k), heads(v)).transpose(1, 2).flatten(2);
}

/// The guide's attention: it pads its own number of heads; pad_model pads its layers.
class PaddedAttention : public LayerGroup {
 public:
  explicit PaddedAttention(int64_t num_heads)
      : query(kHidden, num_heads * kWidth, {.gather_output = false}),
        key(kHidden, num_heads * kWidth, {.gather_output = false}),
        value(kHidden, num_heads * kWidth, {.gather_output = false}),
        out(num_heads * kWidth, kHidden, {.input_is_parallel = true}) {
    add("query", query);
    add("key", key);
    add("value", value);
    add("out", out);
    const int tp = nxd::get_tensor_model_parallel_size();
    local_heads = nxd::divide(num_heads + nxd::get_number_of_extra_heads(num_heads, tp), tp);
  }
  Tensor operator()(const Tensor& x) {
    return out(attend(query(x), key(x), value(x), local_heads));
  }
  int64_t local_heads, split_size = 0;
  nxd::ColumnParallelLinear query, key, value;
  nxd::RowParallelLinear out;
};

struct Block : LayerGroup {
  explicit Block(int64_t num_heads) : attention(num_heads) {
    add("attention", attention);
    add("head", head);
  }
  PaddedAttention attention;
  nxd::ColumnParallelLinear head{kHidden, 20};  // classes
};

/// The unpadded attention on plain tensors.
struct Whole {
  test::Weights weights, leaves;
  Tensor x = leaf_of(numbers({2, 3, kHidden}, 1)), y, upstream = numbers({2, 3, kHidden}, 2);

  explicit Whole(int64_t num_heads) {
    uint64_t seed = 10;
    for (const std::string name : {"query", "key", "value", "out"}) {
      const int64_t rows = name == "out" ? kHidden : num_heads * kWidth;
      const int64_t columns = name == "out" ? num_heads * kWidth : kHidden;
      weights[name + ".weight"] = 0.4 * numbers({rows, columns}, ++seed);
      weights[name + ".bias"] = 0.4 * numbers({rows}, ++seed);
    }
    for (const auto& [name, w] : weights) leaves.emplace(name, leaf_of(w));
    const auto linear = [&](const std::string& name, const Tensor& in) {
      return at::linear(in, leaves.at(name + ".weight"), leaves.at(name + ".bias"));
    };
    y = linear("out", attend(linear("query", x), linear("key", x), linear("value", x), num_heads));
    (y * upstream).sum().backward();
  }
};

// Oracle: the unpadded attention in fp64. With 5 heads on 4 ranks the last rank has only zeros.
TEST(PadModel, HeadsThatDoNotDivide_GiveTheUnpaddedResultAndGradients) {
  for (const int64_t num_heads : {5, 6, 7}) {
    const Whole want(num_heads);
    for (const int tp : {1, 2, 3, 4}) {
      on_model_parallel(tp, 1, [&] {
        PaddedAttention attention(num_heads);
        nxd::pad_model(attention, tp, num_heads);
        test::fill(attention, want.weights, at::kDouble);
        const Tensor x = leaf_of(want.x);
        EXPECT_EQ(attention.query(x).size(-1), attention.local_heads * kWidth);
        const Tensor y = attention(x);
        EXPECT_LE(largest_difference(y, want.y), 1e-13) << num_heads << " heads, tp " << tp;
        (y * want.upstream).sum().backward();
        EXPECT_LE(largest_difference(x.grad(), want.x.grad()), 1e-13);
        const Parameters parameters = attention.parameters();
        finish_gradients(parameters, nxd::get_tensor_model_parallel_group());
        for (const auto& p : parameters) {
          const Tensor& whole = want.leaves.at(p->name()).grad();
          EXPECT_EQ(p->shape(), whole.sizes().vec()) << "checkpoints hold it unpadded";
          EXPECT_LE(largest_difference(p->leaf().grad(), test::slice_of(*p, whole)), 1e-13)
              << p->name() << " " << num_heads << " heads, tp " << tp;
        }
      });
    }
  }
}

TEST(PadModel, Sizes_AreExactWhereFloatingPointIsOneShort) {
  for (int64_t heads = 1; heads <= 128; ++heads) {
    for (int64_t tp = 1; tp <= 64; ++tp) {
      const int64_t extra = nxd::get_number_of_extra_heads(heads, tp);
      ASSERT_EQ((heads + extra) % tp, 0);
      ASSERT_TRUE(extra >= 0 && extra < tp);
      const nxd::HeadRatio ratio{.padded = heads + extra, .heads = heads};
      for (const int64_t width : {32, 64, 80, 96, 128}) {
        ASSERT_EQ(ratio.of(heads * width), (heads + extra) * width);
      }
    }
  }
  EXPECT_EQ(thrown_by([] { (void)nxd::HeadRatio{12, 11}.of(10); }).code(), Code::kShape);
  // 11 heads of 80 on 2 ranks: 40 rows are added, not 39.
  on_model_parallel(2, 1, [] {
    struct Pair : LayerGroup {
      Pair() {
        add("query", query);
        add("out", out);
      }
      nxd::ColumnParallelLinear query{4, 880, {.gather_output = false}};
      nxd::RowParallelLinear out{880, 4, {.input_is_parallel = true}};
    } pair;
    nxd::pad_model(pair, 2, 11);
    nxd::move_model_to_device(pair, at::kCPU);
    EXPECT_EQ(pair.query(at::zeros({1, 4})).size(-1), 480);
  });
}

TEST(PadModel, WrappedClasses_ArePaddedAndTheirHookIsCalled) {
  on_model_parallel(3, 1, [] {
    Block block(5);
    int calls = 0;
    nxd::pad_model(block, 3, 5,
                   {.wrapped_classes = nxd::classes<PaddedAttention>(),
                    .pad_hook_fn = [&](Layer& layer, const nxd::HeadRatio& ratio) {
                      ++calls;
                      auto& attention = dynamic_cast<PaddedAttention&>(layer);
                      attention.split_size = ratio.of(5 * kWidth);
                    }});
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(block.attention.split_size, 6 * kWidth);
    nxd::move_model_to_device(block, at::kCPU);
    const Tensor x = at::ones({2, kHidden});
    EXPECT_EQ(block.attention.query(x).size(-1), 2 * kWidth);
    EXPECT_EQ(block.head(x).size(-1), 20);
  });
}

TEST(PadModel, PaddingThatWouldChangeResults_IsRefusedAndNothingChanges) {
  on_model_parallel(3, 1, [] {
    const auto refused = [](Layer& model, const nxd::PadModelOptions& options, int64_t tp,
                            int64_t heads, Code code, const char* part) {
      const Error error = thrown_by([&] { nxd::pad_model(model, tp, heads, options); });
      EXPECT_EQ(error.code(), code);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    };
    Block block(5);
    const auto before = block.attention.query.weight()->ranges();
    refused(block, {}, 3, 5, Code::kShape, "wrapped_classes");  // padding `head` would add classes
    refused(block.attention, {}, 2, 5, Code::kUsage, "sharded over 3 ranks");
    refused(block.attention, {}, 3, 8, Code::kShape, "n_heads=8");
    EXPECT_EQ(block.attention.query.weight()->ranges(), before);

    // A vocabulary projection whose output stays sharded, of a size that heads divide.
    struct ShardedHead : LayerGroup {
      ShardedHead() {
        add("attention", attention);
        add("head", head);
      }
      PaddedAttention attention{5};
      nxd::ColumnParallelLinear head{kHidden, 100, {.gather_output = false}};
    } sharded;
    refused(sharded, {}, 3, 5, Code::kShape, "vocabulary projection");

    refused(
        block,
        {.wrapped_classes = nxd::classes<PaddedAttention>(),
         .pad_hook_fn = [](Layer& layer, const nxd::HeadRatio&) { nxd::pad_model(layer, 3, 5); }},
        3, 5, Code::kUsage, "its own pad_hook_fn");
    EXPECT_EQ(block.attention.query.weight()->ranges(), before);

    struct WithoutBias : LayerGroup {
      WithoutBias() {
        add("query", query);
        add("out", out);
      }
      nxd::ColumnParallelLinear query{kHidden, 20, {.gather_output = false, .skip_bias_add = true}};
      nxd::RowParallelLinear out{20, kHidden, {.input_is_parallel = true}};
    } without_bias;
    refused(without_bias, {}, 3, 5, Code::kShape, "skip_bias_add");

    nxd::pad_model(block.attention, 3, 5);
    refused(block.attention, {}, 3, 5, Code::kUsage, "already padded");
    PaddedAttention late(5);
    nxd::move_model_to_device(late, at::kCPU);
    refused(late, {}, 3, 5, Code::kUsage, "before move_model_to_device");
  });
}

}  // namespace
}  // namespace cleave::nxd_pad_test
