#include "cleave/planner/cluster_cost.h"

#include <gtest/gtest.h>

#include "cleave/planner/cluster_links.h"

namespace cleave::cluster_cost_test {
namespace {

/// Without fitted constants, latencies and memory outside of tensors.
Cluster ideal() {
  Cluster c = cluster_preset("a100-80gb");
  c.host_latency_s = c.net_latency_s = 0;
  c.fitted = {.matrix_share = 1,
              .memory_share = 1,
              .host_link_share = 1,
              .net_link_share = 1,
              .layer_call_s = 0,
              .runtime_bytes = 0};
  return c;
}

/// GPT-3 of 175 billion parameters, without its embedding.
TransformerSize gpt3() {
  TransformerSize m;
  m.layers = 96;
  m.hidden = 12288;
  m.heads = m.kv_heads = 96;
  m.head_dim = 128;
  m.ffn = 4 * 12288;
  m.vocab = 8;
  return m;
}

/// Mixed precision as ZeRO's paper counts it: 2 + 2 + 12 bytes per parameter.
ClusterRun run(int tp, int pp, int dp) {
  ClusterRun r;
  r.tp = tp;
  r.pp = pp;
  r.dp = dp;
  r.global_batch = int64_t{64} * dp;
  return r;
}

double states(const ClusterMemory& m) {
  return m.weights + m.gradients + m.optimizer;
}

TEST(ClusterMemory, MixedPrecision_TakesSixteenBytesPerParameter) {
  // psi = 12 l h^2; ends and middle of the pipeline are equal without an embedding.
  const double psi = 12.0 * 96 * 12288 * 12288;
  for (const auto& [tp, pp] : {std::pair{1, 1}, {8, 1}, {8, 8}, {4, 32}}) {
    const double expected = 16 * psi / tp / pp;
    EXPECT_NEAR(states(cluster_memory(ideal(), gpt3(), run(tp, pp, 4))), expected, 1e-4 * expected);
  }
}

TEST(ClusterMemory, ZeroOne_ShardsTwelveOfTheSixteenBytes) {
  const double psi = 12.0 * 96 * 12288 * 12288;
  ClusterRun r = run(8, 8, 4);
  r.sharding = Sharding::kZero1;
  const double expected = (4 + 12.0 / 4) * psi / 64;
  EXPECT_NEAR(states(cluster_memory(ideal(), gpt3(), r)), expected, 1e-4 * expected);
}

TEST(ClusterMemory, Fsdp_ShardsStatesAndHoldsTwoWholeLayers) {
  ClusterRun r = run(1, 1, 64);
  r.sharding = Sharding::kFsdp;
  const double layer = 12.0 * 12288 * 12288;
  const ClusterMemory m = cluster_memory(ideal(), gpt3(), r);
  EXPECT_NEAR(m.optimizer, 12 * 96 * layer / 64, 1e-4 * m.optimizer);
  EXPECT_NEAR(m.gradients, 2 * 96 * layer / 64 + 2 * 2 * layer, 1e-4 * m.gradients);
  EXPECT_NEAR(m.weights, 2 * 2 * layer, 1e-4 * m.weights);
}

TEST(ClusterMemory, FsdpInFp32_ShardsWeightsGradientsAndMoments) {
  ClusterRun r = run(1, 1, 64);
  r.sharding = Sharding::kFsdp;
  r.type = MatrixType::kFp32;
  r.weight_bytes = r.gradient_bytes = 4;
  r.state_bytes = 8;
  const double layer = 12.0 * 12288 * 12288;
  const double expected = (4 + 4 + 8) * 96 * layer / 64 + (4 + 4) * 2 * layer;
  EXPECT_NEAR(states(cluster_memory(ideal(), gpt3(), r)), expected, 1e-4 * expected);
}

TEST(ClusterMemory, ZeroOneInFp32_HoldsItsShardOfTheMasterToo) {
  ClusterRun r = run(8, 8, 4);
  r.sharding = Sharding::kZero1;
  r.type = MatrixType::kFp32;
  r.weight_bytes = r.gradient_bytes = 4;
  r.state_bytes = 8;
  // The table of docs/layouts.md: 4 + 4 + 12 / dp.
  const double expected = (8 + 12.0 / 4) * 12.0 * 96 * 12288 * 12288 / 64;
  EXPECT_NEAR(states(cluster_memory(ideal(), gpt3(), r)), expected, 1e-4 * expected);
}

TEST(ClusterMemory, FsdpThatRegathers_HoldsTwoLayersInPipelinesToo) {
  ClusterRun r = run(1, 8, 8);
  r.sharding = Sharding::kFsdp;
  const double layer = 2 * 12.0 * 12288 * 12288;
  const ClusterMemory kept = cluster_memory(ideal(), gpt3(), r);
  const double kept_s = cluster_cost(ideal(), gpt3(), r).time.dp;
  EXPECT_NEAR(kept.weights, 12 * layer, 1e-4 * kept.weights);
  r.regathers = true;
  EXPECT_NEAR(cluster_memory(ideal(), gpt3(), r).weights, 2 * layer, 1e-4 * layer);
  EXPECT_GE(cluster_cost(ideal(), gpt3(), r).time.dp, kept_s);
}

/// Activation bytes of layers that a stage keeps, without the layer that backward works on.
double kept(const ClusterRun& r, bool fused) {
  Cluster c = ideal();
  c.fused_attention = fused;
  TransformerSize deep = gpt3(), shallow = gpt3();
  shallow.layers = deep.layers / 2;
  return 2 * (cluster_memory(c, deep, r).activations - cluster_memory(c, shallow, r).activations);
}

TEST(ClusterMemory, Activations_AreThoseOfKorthikantiEtAl) {
  const double sbh = 2048.0 * 12288, scores = 5.0 * 96 * 2048 / 12288;
  const auto expect = [&](const ClusterRun& r, double per_layer, bool fused) {
    const double expected = 96 * sbh * per_layer;
    EXPECT_NEAR(kept(r, fused), expected, 1e-3 * expected);
  };
  ClusterRun r = run(8, 1, 1);
  expect(r, 10 + (24 + scores) / 8, false);  // equation 2
  r.sequence_parallel = true;
  expect(r, (34 + scores) / 8, false);  // equation 4
  r.recompute = Keep::kSelective;
  expect(r, 34.0 / 8, false);  // equation 6
  r.recompute = Keep::kAll;
  expect(r, 34.0 / 8, true);
  r.recompute = Keep::kFull;
  r.sequence_parallel = false;
  expect(r, 2, false);
}

// torchtitan's selective recompute keeps the layer's input, queries, values, attention's output,
// one product of the feed-forward layer and the last product; compiled layers do not keep the
// latter.
TEST(ClusterMemory, CompiledLayers_DoNotKeepTheirLastProduct) {
  const double sbh = 2048.0 * 12288;
  ClusterRun r = run(1, 1, 1);
  r.recompute = Keep::kSelectiveOps;
  EXPECT_NEAR(kept(r, true), 96 * sbh * 2 * (5 + 4), 1e-3 * 96 * sbh * 18);
  r.kernels = Kernels::kCompiled;
  EXPECT_NEAR(kept(r, true), 96 * sbh * 2 * (4 + 4), 1e-3 * 96 * sbh * 16);
}

TEST(ClusterMemory, FusedLoss_HoldsLogitsAndTheirGradientIn16Bits) {
  TransformerSize m = gpt3();
  // So narrow that a layer's working memory is smaller than the logits.
  m.layers = 1;
  m.hidden = 1024;
  m.ffn = 4096;
  m.heads = m.kv_heads = 8;
  m.vocab = 1 << 17;
  ClusterRun r = run(1, 1, 1);
  for (const auto& [is_fused, bytes] : {std::pair{false, 12.0}, {true, 4.0}}) {
    r.fused_loss = is_fused;
    EXPECT_DOUBLE_EQ(cluster_memory(ideal(), m, r).logits, 2048.0 * (1 << 17) * bytes);
  }
}

// Korthikanti et al. count a mask of one byte for each of two dropouts, of 34 sbh.
TEST(ClusterMemory, LayersWithoutDropout_KeepNoMasks) {
  TransformerSize m = gpt3();
  const ClusterRun r = run(1, 1, 1);
  const double with = cluster_memory(ideal(), m, r).activations;
  m.dropout = false;
  EXPECT_NEAR(cluster_memory(ideal(), m, r).activations, with * 32 / 34, 1e-9 * with);
}

// Fast links: of a collective in as many chunks as ranks, the first or the last one shows. Slow
// ones: the products hide their own time, of which backward has twice as much.
TEST(ClusterTime, OverlappedTensorParallelism_ShowsAChunkOrWhatProductsDoNotHide) {
  const TransformerSize m = gpt3();
  ClusterRun r = run(8, 1, 1);
  Cluster c = ideal();
  const auto both = [&] {
    r.overlaps_tp = false;
    const ClusterTime plain = cluster_cost(c, m, r).time;
    r.overlaps_tp = true;
    return std::pair(plain, cluster_cost(c, m, r).time);
  };
  const auto [plain, overlapped] = both();
  ASSERT_GT(plain.gemm, 3 * plain.tp);
  // The head's sum, a four hundredth of the layers', does not overlap.
  EXPECT_NEAR(overlapped.tp, plain.tp / 8, 0.03 * plain.tp);
  EXPECT_EQ(overlapped.gemm, plain.gemm);
  c.host_link_rate /= 3 * plain.gemm / plain.tp;
  const auto [slow, hidden] = both();
  EXPECT_NEAR(slow.tp, 3 * slow.gemm, 0.01 * slow.tp);
  EXPECT_NEAR(hidden.tp, slow.tp - slow.gemm, 0.01 * slow.tp);
}

// A step has three products of each matrix, one of them for the weight's gradient.
TEST(ClusterTime, FrozenWeights_HaveNoProductsForTheirGradients) {
  const TransformerSize m = gpt3();
  ClusterRun r = run(1, 1, 1);
  const ClusterTime all = cluster_cost(ideal(), m, r).time;
  r.frozen = true;
  const ClusterTime frozen = cluster_cost(ideal(), m, r).time;
  EXPECT_NEAR(frozen.gemm, all.gemm * 2 / 3, 0.03 * all.gemm);
  EXPECT_EQ(frozen.attention, all.attention);
}

TEST(ClusterMemory, Fp32_DoublesActivations) {
  ClusterRun r = run(8, 1, 1);
  const double half = kept(r, true);
  r.element_bytes = 4;
  EXPECT_DOUBLE_EQ(kept(r, true), 2 * half);
}

TEST(ClusterMemory, FirstStage_HoldsAMicroBatchForEachStage) {
  const double input = 2.0 * 2048 * 12288;
  ClusterRun r = run(1, 8, 1);
  r.recompute = Keep::kFull;
  // 12 layers x 8 micro-batches; interleaved holds 1 + (p - 1) / (p v) times as many.
  const double plain = cluster_memory(ideal(), gpt3(), r).activations;
  r.virtual_stages = 2;
  const double interleaved = cluster_memory(ideal(), gpt3(), r).activations;
  EXPECT_NEAR(interleaved - plain, 12 * 8 * input * 7 / 16, 1e-6 * plain);
}

TEST(ClusterTime, Bubble_IsStagesLessOneOverMicroBatches) {
  Cluster c = ideal();
  c.net_link_rate = c.host_link_rate = 1e18;
  for (const int virtual_stages : {1, 2, 3}) {
    ClusterRun r = run(8, 8, 1);
    r.virtual_stages = virtual_stages;
    const ClusterTime t = cluster_cost(c, gpt3(), r).time;
    const double busy = t.gemm + t.attention + t.memory_bound;
    const double expected = 7.0 / 64 / virtual_stages;
    // The head of 8 words rounds up to one tile: 1 % of a stage.
    EXPECT_NEAR(t.bubble / busy, expected, 0.03 * expected);
  }
}

TEST(ClusterTime, Gemm_TakesTwoFlopsPerElementOnFilledCores) {
  const Cluster c = ideal();
  // 108 x 32 tiles: all cores are busy; inner sizes much larger than 128 lose little.
  const double m = 256 * 108, n = 128 * 32, k = 1 << 20;
  EXPECT_NEAR(gemm_time(c, MatrixType::kBf16, m, n, k), 2 * m * n * k / 312e12, 1e-17 * m * n * k);
  // One more row of tiles takes one more turn of the cores.
  const double one = gemm_time(c, MatrixType::kBf16, 256, 128.0 * 108, k);
  const double more = gemm_time(c, MatrixType::kBf16, 256, 128.0 * 109, k);
  EXPECT_NEAR(more / one, 2, 0.05);
}

TEST(ClusterTime, HeadsThatAreNoMultipleOfEight_LeaveTheMatrixUnits) {
  TransformerSize odd = gpt3(), even = gpt3();
  odd.head_dim = 127;
  const double slow = cluster_cost(ideal(), odd, run(8, 8, 1)).time.attention;
  EXPECT_GT(slow, 5 * cluster_cost(ideal(), even, run(8, 8, 1)).time.attention);
}

/// Seconds of the elementwise passes of llama3-8b's layers for a token, forward and backward.
double pass_time(const Cluster& c, Kernels kernels) {
  TransformerSize m;
  m.layers = 32;
  m.hidden = 4096;
  m.heads = 32;
  m.kv_heads = 8;
  m.head_dim = 128;
  m.ffn = 14336;
  m.vocab = 8;
  m.gated = true;
  ClusterRun r = run(1, 1, 1);
  r.kernels = kernels;
  const double head = 2048.0 * 64 * 8 * 20 / (c.memory_rate * c.fitted.memory_share);
  return (cluster_cost(c, m, r).time.memory_bound - head) / (2048.0 * 64);
}

// Oracle: the operations of PyTorch 2.6 in bf16, by the bytes that each reads and writes for an
// element. Backward is counted twice forward.
TEST(ClusterTime, ElementwisePasses_MoveTheBytesOfTheirKernels) {
  const double to_fp32 = 2 + 4, fp32 = 4 + 4, to_bf16 = 4 + 2, bf16 = 2 + 2, sum = 2 + 2 + 2;
  const double mean = 4;  // its result is small
  const double norm = to_fp32 + fp32 + mean + fp32 + to_bf16 + bf16;
  const double rotation = to_fp32 + fp32 + to_bf16, copies_for_heads = bf16;
  const double silu_and_product = bf16 + sum;
  const double hidden = 4096, keys_and_queries = 4096 + 1024, ffn = 14336;
  const double eager = hidden * 2 * (norm + sum) +
                       keys_and_queries * (rotation + copies_for_heads) + ffn * silu_and_product;
  const Cluster c = ideal();
  const double seconds = 3 * 32 / c.memory_rate;  // of a byte
  EXPECT_NEAR(pass_time(c, Kernels::kEager), seconds * eager, 1e-9 * seconds * eager);
  // Compiled: a kernel adds, norms and writes both results; others rotate, and activate.
  const double sum_and_norm = 2 + 2 + 2 + 2, swiglu = 2 + 2 + 2;
  const double compiled = hidden * 2 * sum_and_norm + keys_and_queries * bf16 + ffn * swiglu;
  EXPECT_NEAR(pass_time(c, Kernels::kCompiled), seconds * compiled, 1e-9 * seconds * compiled);
}

// LayerNorm and GELU are single kernels of PyTorch.
TEST(ClusterTime, EagerGpt_MovesTheBytesOfFusedKernels) {
  ClusterRun r = run(1, 1, 1);
  const double own = cluster_cost(ideal(), gpt3(), r).time.memory_bound;
  r.kernels = Kernels::kEager;
  EXPECT_DOUBLE_EQ(cluster_cost(ideal(), gpt3(), r).time.memory_bound, own);
}

// A low fitted share stands for kernels that nobody counted.
TEST(ClusterTime, KernelsThatAreCounted_DoNotHaveTheShareOfOthers) {
  Cluster c = ideal();
  const double own = pass_time(c, Kernels::kOwn), eager = pass_time(c, Kernels::kEager);
  c.fitted.memory_share = 0.3;
  EXPECT_NEAR(pass_time(c, Kernels::kOwn), own / 0.3, 1e-6 * own);
  EXPECT_NEAR(pass_time(c, Kernels::kEager), eager / 0.905, 1e-6 * eager);
}

// torchtitan keeps the results of reduce-scatters and gathers again: half an all-reduce for each of
// forward's two, which backward doubles.
TEST(ClusterTime, SelectiveRecomputeOfOperations_GathersAgain) {
  ClusterRun r = run(8, 1, 1);
  const double kept = cluster_cost(ideal(), gpt3(), r).time.tp;
  r.recompute = Keep::kSelectiveOps;
  EXPECT_NEAR(cluster_cost(ideal(), gpt3(), r).time.tp, kept * 5 / 4, 1e-3 * kept);
}

TEST(ClusterTime, FusedAttention_HasAShareOfTheSpeedOfProducts) {
  Cluster c = ideal();
  const double all = cluster_cost(c, gpt3(), run(8, 1, 1)).time.attention;
  c.attention_share /= 2;
  EXPECT_DOUBLE_EQ(cluster_cost(c, gpt3(), run(8, 1, 1)).time.attention, 2 * all);
}

// Muon: four bytes for a parameter of the layers, eight for the rest. The ends hold most.
TEST(ClusterMemory, FurtherStatesOfTheEnds_CountForEmbeddingAndHead) {
  TransformerSize m = gpt3();
  m.vocab = 50000;
  ClusterRun r = run(8, 8, 4);
  r.state_bytes = 4;
  const double same = cluster_memory(ideal(), m, r).optimizer;
  r.more_end_bytes = 4;
  const double embedding = 50000.0 * 12288 / 8;
  EXPECT_NEAR(cluster_memory(ideal(), m, r).optimizer - same, 4 * embedding, 1e-6 * same);
  r.sharding = Sharding::kZero1;
  EXPECT_NEAR(cluster_memory(ideal(), m, r).optimizer, (same + 4 * embedding) / 4, 1e-6 * same);
}

TEST(ClusterLinks, AllReduce_SendsTwiceTheBytesOfARing) {
  const Cluster c = ideal();
  const double bytes = 1e9;
  // Inside a host over NVLink; between 8 hosts with 1 and with 8 members per host.
  EXPECT_DOUBLE_EQ(all_reduce_time(c, bytes, {.size = 8, .stride = 1}),
                   2 * 7.0 / 8 * bytes / 300e9);
  EXPECT_DOUBLE_EQ(all_reduce_time(c, bytes, {.size = 8, .stride = 8}), 2 * 7.0 / 8 * bytes / 25e9);
  EXPECT_DOUBLE_EQ(all_reduce_time(c, bytes, {.size = 64, .stride = 1}),
                   2 * 63.0 / 64 * bytes / (8 * 25e9));
  EXPECT_EQ(all_reduce_time(c, bytes, {.size = 1, .stride = 1}), 0);
  EXPECT_DOUBLE_EQ(send_time(c, bytes, 1, 8), bytes / 300e9);
  EXPECT_DOUBLE_EQ(send_time(c, bytes, 8, 16), bytes / 25e9);
}

TEST(ClusterLinks, AllToAll_SendsWhatIsForOthersOverTheSlowerLink) {
  const Cluster c = ideal();
  const double bytes = 1e9;
  EXPECT_DOUBLE_EQ(all_to_all_time(c, bytes, {.size = 8, .stride = 1}), 7.0 / 8 * bytes / 300e9);
  // Half of it is for the other host.
  EXPECT_DOUBLE_EQ(all_to_all_time(c, bytes, {.size = 16, .stride = 1}), bytes / 2 / 25e9);
  EXPECT_EQ(all_to_all_time(c, bytes, {.size = 1, .stride = 1}), 0);
}

/// GPT-3 with four experts in place of each feed-forward layer, two of them for a token.
TransformerSize with_experts() {
  TransformerSize m = gpt3();
  m.experts = 4;
  m.top_k = 2;
  return m;
}

// Expert parallelism divides the experts, ZeRO-1 the states of both parts: those of experts over
// the devices that have the same ones.
TEST(ClusterMemory, ExpertParallel_DividesTheExpertsOnly) {
  const double h = 12288;
  const double experts = 96 * 4 * 8 * h * h, rest = 96 * (4 * h * h + 4 * h);
  ClusterRun r = run(8, 1, 8);
  EXPECT_NEAR(states(cluster_memory(ideal(), with_experts(), r)), 16 * (rest + experts) / 8,
              1e-4 * experts);
  r.ep = 4;
  EXPECT_NEAR(states(cluster_memory(ideal(), with_experts(), r)), 16 * (rest + experts / 4) / 8,
              1e-4 * experts);
  r.sharding = Sharding::kZero1;
  const double each = 4 * (rest + experts / 4) + 12 * (rest / 8 + experts / 4 / 2);
  EXPECT_NEAR(states(cluster_memory(ideal(), with_experts(), r)), each / 8, 1e-4 * experts);
}

// With ep 8 of tp x dp 16 each device has one of a layer's eight experts, and two have the same.
TEST(ClusterMemory, WholeExperts_AreSharedOutOverTpAndDp) {
  const double h = 12288;
  TransformerSize m = with_experts();
  m.experts = 8;
  const double experts = 96 * 8 * 8 * h * h, rest = 96 * (4 * h * h + 8 * h);
  ClusterRun r = run(8, 1, 2);
  r.whole_experts = true;
  r.ep = 8;
  EXPECT_NEAR(states(cluster_memory(ideal(), m, r)), 16 * (rest / 8 + experts / 8), 1e-4 * experts);
  r.sharding = Sharding::kZero1;
  const double each = 4 * (rest / 8 + experts / 8) + 12 * (rest / 8 / 2 + experts / 8 / 2);
  EXPECT_NEAR(states(cluster_memory(ideal(), m, r)), each, 1e-4 * experts);
  r.ep = 16;
  EXPECT_EQ(refusal(m, r), "ep 16 does not divide the 8 experts and tp x dp 16");
}

// The same experts and tokens of a device with tp 2, whole or split: the exchange has half the
// tokens, tp's sums are those of attention alone, and the products have the same flops.
TEST(ClusterTime, WholeExperts_TakeADevicesOwnTokens) {
  ClusterRun r = run(2, 1, 2);
  r.sequence_parallel = true;
  r.ep = 2;
  const ClusterTime split = cluster_cost(ideal(), with_experts(), r).time;
  r.whole_experts = true;
  const ClusterTime whole = cluster_cost(ideal(), with_experts(), r).time;
  EXPECT_NEAR(whole.ep, split.ep / 2, 1e-6 * split.ep);
  EXPECT_NEAR(whole.tp, split.tp / 2, 0.01 * split.tp);
  EXPECT_NEAR(whole.gemm, split.gemm, 0.02 * split.gemm);
}

// Exchanges that are shorter than the compute of a pass do not show; of others the rest does.
TEST(ClusterTime, OverlappedExchanges_ShowWhatComputeDoesNotHide) {
  ClusterRun r = run(1, 1, 4);
  r.ep = 4;
  r.overlaps_ep = true;
  EXPECT_EQ(cluster_cost(ideal(), with_experts(), r).time.ep, 0);
  Cluster slow = ideal();
  slow.host_link_rate /= 1000;
  const ClusterTime t = cluster_cost(slow, with_experts(), r).time;
  r.overlaps_ep = false;
  const ClusterTime plain = cluster_cost(slow, with_experts(), r).time;
  // The head is no part of a layer: less than a thousandth.
  EXPECT_NEAR(t.ep, plain.ep - (t.gemm + t.attention + t.memory_bound), 0.001 * plain.ep);
}

// Messages between stages that are sent beside compute show in the bubble alone.
TEST(ClusterTime, OverlappedMessagesBetweenStages_ShowInTheBubble) {
  ClusterRun r = run(8, 8, 1);
  const ClusterTime plain = cluster_cost(ideal(), gpt3(), r).time;
  r.overlaps_pp = true;
  const ClusterTime t = cluster_cost(ideal(), gpt3(), r).time;
  EXPECT_GT(plain.pp, 0);
  EXPECT_EQ(t.pp, 0);
  EXPECT_EQ(t.bubble, plain.bubble);
}

// Six bytes for each element that a product reads: GPT-3's layer reads 7 widths of inputs (for
// queries to values, the output and the two feed-forward products 1, 1, 1 and 4) and 9 of gradients
// (3, 1, 4 and 1). fp4 writes half as many bytes of its two copies.
TEST(ClusterTime, Conversions_MoveTheBytesOfWhatProductsRead) {
  ClusterRun r = run(1, 1, 1);
  const double wide = cluster_cost(ideal(), gpt3(), r).time.memory_bound;
  const double rate = 2039e9;
  const double elements = 96.0 * 64 * 2048 * 12288 * (7 + 9);
  r.type = MatrixType::kFp8;
  EXPECT_NEAR(cluster_cost(ideal(), gpt3(), r).time.memory_bound - wide, elements * 6 / rate,
              1e-4 * wide);
  r.type = MatrixType::kFp4;
  EXPECT_NEAR(cluster_cost(ideal(), gpt3(), r).time.memory_bound - wide, elements * 5 / rate,
              1e-4 * wide);
}

TEST(ClusterCost, EpThatDividesNoExperts_IsRefused) {
  ClusterRun r = run(1, 1, 4);
  r.ep = 2;
  r.global_batch = 4;
  EXPECT_EQ(refusal(with_experts(), r), "");
  EXPECT_EQ(refusal(gpt3(), r), "ep 2 does not divide the 0 experts and dp 4");
  r.ep = 3;
  EXPECT_EQ(refusal(with_experts(), r), "ep 3 does not divide the 4 experts and dp 4");
}

// Two exchanges of a layer in forward and two in backward; each token twice, three quarters of them
// for other devices. One expert for each token takes the time of a dense model.
TEST(ClusterTime, Experts_ExchangeEachTokenOnceForEachOfItsExperts) {
  ClusterRun r = run(1, 1, 4);
  r.ep = 4;
  const double bytes = 2048.0 * 2 * 12288 * 2;
  EXPECT_NEAR(cluster_cost(ideal(), with_experts(), r).time.ep,
              4.0 * 96 * 64 * bytes * 3 / 4 / 300e9, 1e-6);
  TransformerSize one = with_experts();
  one.top_k = 1;
  const double dense = cluster_cost(ideal(), gpt3(), run(1, 1, 4)).time.gemm;
  // The router's four columns fill one tile.
  EXPECT_NEAR(cluster_cost(ideal(), one, r).time.gemm, dense, 0.02 * dense);
}

TEST(ClusterLinks, GroupsThatLieOnTwoHosts_UseTheNetwork) {
  const Cluster c = ideal();
  const double bytes = 1e9;
  // 24 devices on hosts of 8: the group of 6, 7, 8 lies on two. 6 devices have one host.
  EXPECT_DOUBLE_EQ(all_reduce_time(c, bytes, {.size = 3, .stride = 1, .world = 24}),
                   2 * 2.0 / 3 * bytes / (3 * 25e9));
  EXPECT_DOUBLE_EQ(all_reduce_time(c, bytes, {.size = 3, .stride = 1, .world = 6}),
                   2 * 2.0 / 3 * bytes / 300e9);
  EXPECT_DOUBLE_EQ(all_reduce_time(c, bytes, {.size = 4, .stride = 1, .world = 24}),
                   2 * 3.0 / 4 * bytes / 300e9);
  // Stages of 4 devices: from 4..7 to 8..11.
  EXPECT_DOUBLE_EQ(send_time(c, bytes, 4, 16), bytes / 25e9);
}

TEST(TransformerSize, Gpt3_Has175BillionParameters) {
  TransformerSize m = gpt3();
  m.vocab = 50257;
  EXPECT_NEAR(m.parameters() / 1e9, 174.6, 0.1);
}

}  // namespace
}  // namespace cleave::cluster_cost_test
