// Gradients that pass between data-parallel ranks in bf16.
#include <algorithm>
#include <bit>
#include <cstdint>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/gradient_sync.h"
#include "tests/support/counting_group.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"

namespace cleave::reduce_type_test {
namespace {

constexpr int64_t kBucketBytes = 2048;  // a few parameters
const char* const kConfig = R"json({"model_type": "llama", "vocab_size": 22, "hidden_size": 12,
  "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 3,
  "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 32,
  "tie_word_embeddings": false})json";

struct Case {
  DataSharding sharding = DataSharding::kNone;
  at::ScalarType param = at::kFloat;
  std::optional<at::ScalarType> sent = at::kBFloat16;
  int64_t num_micro_batches = 2;
};

/// Backward of one micro-batch of data-parallel rank `rank`; each has different sequences.
void backward(Model& model, int rank, int64_t micro_batch) {
  const Tensor ids = test::ids({2, 5}, 22, static_cast<uint64_t>(10 * micro_batch + rank));
  const DTensor logits = model(DTensor(ids, Axis(), Replicate{}), Context());
  cross_entropy(logits, next_token_labels(ids), {.valid_tokens = 32}).local().backward();
}

/// Runs a step of rank `rank` of `dp`, which `first` micro-batches begin, and calls
/// `use(parameter, gradient)`.
template <class Use>
void step(const Case& c, const Axis& dp, int rank, int64_t first, const Use& use) {
  const auto model = make_model(Json::parse(kConfig, "config.json"));
  const ShardPrecision precision{.param = c.param, .reduce = at::kFloat, .sent = c.sent};
  if (c.sharding == DataSharding::kFsdp) {
    fully_shard(model->sequence(), dp, {.precision = precision});
  }
  GradientSync sync(model->parameters(), dp,
                    {.sharding = c.sharding, .precision = precision, .bucket_bytes = kBucketBytes});
  materialize(*model, {.seed = 5});
  sync.refresh_weights();
  sync.begin(static_cast<size_t>(c.num_micro_batches));
  for (int64_t m = 0; m < c.num_micro_batches; ++m) backward(*model, rank, first + m);
  sync.complete();
  for (const auto& p : model->parameters()) use(*p, p->leaf().grad());
}

/// The gradients that `num` micro-batches of a rank have by themselves, in fp32.
std::vector<Tensor> own_gradients(const Case& c, int rank, int64_t first, int64_t num) {
  std::vector<Tensor> out;
  const Case alone{.param = c.param, .sent = {}, .num_micro_batches = num};
  step(alone, Axis(), rank, first,
       [&](const Parameter&, const Tensor& g) { out.push_back(g.to(at::kFloat)); });
  return out;
}

/// To the nearest bf16, ties to even.
float rounded(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U);
}

/// For each parameter: what the ranks sum of rounded gradients, in rank order and rounded once.
std::vector<Tensor> rounded_sums(const Case& c, int num_ranks, int64_t first, int64_t num) {
  std::vector<Tensor> sums;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::vector<Tensor> own = own_gradients(c, rank, first, num);
    if (sums.empty()) {
      for (const Tensor& g : own) sums.push_back(at::zeros_like(g));
    }
    for (size_t i = 0; i < own.size(); ++i) {
      auto* const sum = sums[i].mutable_data_ptr<float>();
      const auto* const part = own[i].const_data_ptr<float>();
      for (int64_t at = 0; at < own[i].numel(); ++at) {
        sum[at] = (rank == 0 ? 0.0F : sum[at]) + rounded(part[at]);
      }
    }
  }
  for (const Tensor& t : sums) {
    auto* const sum = t.mutable_data_ptr<float>();
    std::transform(sum, sum + t.numel(), sum, rounded);
  }
  return sums;
}

/// FSDP sums each micro-batch over the ranks and adds the sums in fp32; else the micro-batches of a
/// rank are added in fp32 first.
std::vector<Tensor> wanted(const Case& c, int num_ranks) {
  if (c.sharding != DataSharding::kFsdp) return rounded_sums(c, num_ranks, 0, c.num_micro_batches);
  std::vector<Tensor> all = rounded_sums(c, num_ranks, 0, 1);
  for (int64_t m = 1; m < c.num_micro_batches; ++m) {
    const std::vector<Tensor> next = rounded_sums(c, num_ranks, m, 1);
    for (size_t i = 0; i < all.size(); ++i) all[i] += next[i];
  }
  return all;
}

TEST(ReduceType, SumsOfBf16Gradients_AreThoseOfRoundedOnesInFp32) {
  constexpr int kRanks = 3;
  for (const DataSharding sharding :
       {DataSharding::kNone, DataSharding::kZero1, DataSharding::kFsdp}) {
    for (const at::ScalarType param : {at::kFloat, at::kBFloat16}) {
      for (const int64_t num : {1, 2}) {
        const Case c{.sharding = sharding, .param = param, .num_micro_batches = num};
        test::on_ranks(kRanks, [&](const Axis& dp) {
          const std::vector<Tensor> want = wanted(c, kRanks);
          size_t i = 0;
          step(c, dp, dp.rank(), 0, [&](const Parameter& p, const Tensor& gradient) {
            Tensor own = want[i++];
            if (p.is_flat()) {
              own = own.flatten().narrow(0, p.flat_range().begin, p.flat_range().size());
            }
            EXPECT_EQ(gradient.scalar_type(), at::kFloat);
            EXPECT_TRUE(at::equal(gradient.flatten(), own.flatten()))
                << p.name() << ", sharding " << static_cast<int>(sharding) << ", "
                << toString(param) << ", " << num << " micro-batches";
          });
        });
      }
    }
  }
}

/// Bytes of gradients that a rank of two sends in a step.
int64_t bytes_sent(const Case& c) {
  int64_t bytes = 0;
  test::on_ranks(2, [&](const Axis& dp) {
    const auto counting = std::make_shared<test::CountingGroup>(dp.group());
    step(c, Axis(counting), dp.rank(), 0, [](const Parameter&, const Tensor&) {});
    if (dp.rank() != 0) return;
    auto by_name = counting->taken_bytes();
    bytes = by_name["all_reduce"] + by_name["reduce_scatter"];
  });
  return bytes;
}

// Closed form: an all-reduce over two ranks sends each element twice by half of the ranks, a
// reduce-scatter once. refresh_weights() compares unsharded weights by two integers for each.
TEST(ReduceType, GradientsInBf16_SendTwoBytesAnElement) {
  int64_t numel = 0, compared = 0;
  for (const auto& p : make_model(Json::parse(kConfig, "config.json"))->parameters()) {
    numel += p->numel();
    compared += 2 * static_cast<int64_t>(sizeof(int64_t));
  }
  for (const at::ScalarType sent : {at::kBFloat16, at::kFloat}) {
    const auto item = static_cast<int64_t>(at::elementSize(sent));
    const auto of = [&](DataSharding sharding) {
      return bytes_sent({.sharding = sharding, .sent = sent, .num_micro_batches = 1});
    };
    EXPECT_EQ(of(DataSharding::kNone), numel * item + compared);
    EXPECT_EQ(of(DataSharding::kZero1), numel / 2 * item);
    EXPECT_EQ(of(DataSharding::kFsdp), numel / 2 * item);
  }
}

// The bound of docs/hosts.md: each rank's part and the sum are rounded, by 2^-8 at most.
TEST(ReduceType, ErrorOfBf16Gradients_IsWithinItsBound) {
  constexpr int kRanks = 3;
  constexpr double kUnit = 0x1p-8, kTiny = 0x1p-133;  // half of bf16's spacing; its subnormals
  test::on_ranks(kRanks, [&](const Axis& dp) {
    std::vector<std::vector<Tensor>> own;
    for (int rank = 0; rank < kRanks; ++rank) own.push_back(own_gradients({}, rank, 0, 2));
    size_t i = 0;
    step({}, dp, dp.rank(), 0, [&](const Parameter& p, const Tensor& gradient) {
      Tensor exact = at::zeros(gradient.sizes(), at::kDouble), magnitude = exact.clone();
      for (const auto& of_rank : own) {
        exact += of_rank[i];
        magnitude += of_rank[i].abs();
      }
      ++i;
      const Tensor error = (gradient - exact).abs();
      const Tensor bound = (magnitude * (2.01 * kUnit)).add(4 * kTiny);
      EXPECT_TRUE(error.le(bound).all().item<bool>()) << p.name();
      EXPECT_GT(error.max().item<double>(), 0) << p.name();
    });
  });
}

}  // namespace
}  // namespace cleave::reduce_type_test
