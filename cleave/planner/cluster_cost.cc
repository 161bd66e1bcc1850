#include "cleave/planner/cluster_cost.h"

#include <algorithm>
#include <cmath>

#include "cleave/base/error.h"
#include "cleave/planner/cluster_links.h"

namespace cleave::inline planner {
namespace {

// In backward: a layer's activations, their gradients, and the recomputed or temporary tensors
// that live beside them. Stored scores have only their gradients beside them.
constexpr double kWorkingLayers = 3;
constexpr double kWorkingScores = 2;

/// Bytes that a logit takes: the logit, its fp32 copy, and the gradients of both.
double logit_bytes(const ClusterRun& r) {
  return r.fused_loss ? 4 : 12;
}

/// Bytes that the loss and its backward move for each logit. A fused loss reads 16 bits for the
/// maximum, for the sum and in backward, and writes the gradient.
double loss_bytes(const ClusterRun& r) {
  return r.fused_loss ? 8 : 20;
}

// The share of the memory bandwidth that a pass reaches if its bytes are known kernel by kernel. It
// is the fitted share of selene and dgx-h100, whose software fuses the passes that
// elementwise_bytes() counts together.
constexpr double kKernelShare = 0.905;

bool has_dropout(const TransformerSize& m) {
  return m.dropout && !m.gated;
}

double bytes_of(MatrixType type) {
  return type == MatrixType::kFp32 ? 4 : 2;
}

/// Seconds of one pass of a micro-batch through a layer.
struct Pass {
  double gemm = 0, attention = 0, memory_bound = 0, tp = 0, ep = 0;
  [[nodiscard]] double compute() const { return gemm + attention + memory_bound; }
  [[nodiscard]] double messages() const { return tp + ep; }
  Pass& add(const Pass& other, double factor) {
    gemm += factor * other.gemm;
    attention += factor * other.attention;
    memory_bound += factor * other.memory_bound;
    tp += factor * other.tp;
    ep += factor * other.ep;
    return *this;
  }
};

/// What follows from a run on a cluster for one micro-batch. The bytes below are those of 16-bit
/// activations; `wide` is 2 for fp32.
struct Shape {
  const Cluster& c;
  const TransformerSize& m;
  const ClusterRun& r;
  double tokens = static_cast<double>(r.micro_batch * r.seq_len) / r.cp;  ///< of a device
  double hidden = static_cast<double>(m.hidden);
  double tp = r.tp;
  double expert_tp = r.whole_experts ? 1 : tp;  ///< devices that share a feed-forward layer
  double own_tokens = tokens * expert_tp / tp;  ///< those that a device sends to its experts
  double wide = r.element_bytes / 2;
  double rate = c.memory_rate * c.fitted.memory_share;  ///< bytes of elementwise passes
  double kernel_rate = std::max(rate, c.memory_rate* kKernelShare);  ///< those of known kernels

  /// Rows of a device's feed-forward layers: each token once for each of its experts.
  [[nodiscard]] double routed() const {
    return own_tokens * static_cast<double>(m.experts > 0 ? m.top_k : 1);
  }
  [[nodiscard]] double boundary_bytes() const { return tokens * hidden * r.element_bytes; }
  /// Attention scores that a device computes in one layer.
  [[nodiscard]] double scores() const {
    return tokens * static_cast<double>(r.seq_len * m.heads) / tp;
  }
};

/// Flops per second of large products of attention, which fp8 leaves in bf16.
double attention_speed(const Shape& s) {
  return s.c.matrix_flops.at(s.r.type == MatrixType::kFp32 ? 0 : 1) * s.c.fitted.matrix_share;
}

double slow_attention(const Shape& s, double flops) {
  return flops / (s.c.vector_flops * s.c.fitted.matrix_share / 2);
}

/// The two products of attention and the passes over their scores. Products whose inner size is
/// not a multiple of 8 elements (16 bytes) do not run on matrix units.
double attention_time(const Shape& s, bool backward) {
  const double d = static_cast<double>(s.m.head_dim);
  const double flops = 4 * s.scores() * d * (backward ? 2 : 1);
  const bool is_aligned = s.m.head_dim % 8 == 0;
  if (s.c.fused_attention) {
    // Half the scores are masked; backward computes them again. Softmax slows the products down.
    const double work = flops / 2 * (backward ? 1.25 : 1);
    if (!is_aligned) return slow_attention(s, work);
    return work / (attention_speed(s) * s.c.attention_share);
  }
  // fp16 bytes per score: written, read and written by softmax and by dropout with its mask, read.
  const double bytes = s.wide * s.scores() * (backward ? 19 : 13);
  const double products =
      is_aligned ? flops / (attention_speed(s) * d / (d + 64)) : slow_attention(s, flops);
  return products + bytes / s.rate;
}

/// Seconds to sum or gather the activations of all tensor-parallel ranks.
double tp_time(const Shape& s) {
  return all_reduce_time(s.c, s.boundary_bytes(),
                         {.size = s.r.tp, .stride = 1, .world = s.r.devices()});
}

/// Seconds of a layer's tensor-parallel collectives that its products do not hide. With overlap:
/// those of one of as many chunks as there are ranks, or the time by which the collectives exceed
/// the products, whichever is longer. Whole experts take a device's own tokens: attention alone has
/// collectives.
double exposed_tp_time(const Shape& s, double gemm) {
  const double whole = (s.r.whole_experts ? 1 : 2) * tp_time(s);
  return s.r.overlaps_tp ? std::max(whole / s.tp, whole - gemm) : whole;
}

/// The matrices of a layer: how many a device has, rows, columns and inner size of its product.
struct Product {
  double count, rows, n, k;
};
std::array<Product, 5> products(const Shape& s) {
  const double q = static_cast<double>(s.m.heads * s.m.head_dim);
  const double kv = static_cast<double>(s.m.kv_heads * s.m.head_dim);
  const double f = static_cast<double>(s.m.ffn);
  const double t = s.tokens;
  // Equal shares of the tokens of all devices that share out the experts.
  const double own = s.m.experts > 0 ? static_cast<double>(s.m.experts) / s.r.ep : 1;
  const double rows = s.routed() / own;
  return {
      {{1, t, (q + 2 * kv) / s.tp, s.hidden},
       {1, t, s.hidden, q / s.tp},
       {own, rows, (s.m.gated ? 2 : 1) * f / s.expert_tp, s.hidden},
       {own, rows, s.hidden, f / s.expert_tp},
       {s.m.experts > 0 ? 1.0 : 0.0, s.own_tokens, static_cast<double>(s.m.experts), s.hidden}}};
}

/// Seconds of the exchange of tokens with their experts, or of the results with their tokens.
double exchange_time(const Shape& s) {
  if (s.m.experts == 0) return 0;
  return all_to_all_time(
      s.c, s.routed() * s.hidden * s.r.element_bytes,
      {.size = s.r.ep, .stride = s.r.whole_experts ? 1 : s.r.tp, .world = s.r.devices()});
}

/// Seconds of a pass's exchanges, there and back, that compute does not hide.
double exposed_ep_time(const Shape& s, double compute) {
  const double whole = 2 * exchange_time(s);
  return s.r.overlaps_ep ? std::max(0.0, whole - compute) : whole;
}

/// Bytes that elementwise passes of a layer move in forward, for a hidden element, for one of
/// queries and keys, and for one of the feed-forward layer.
struct PassBytes {
  double hidden, rotated, ffn;
};
PassBytes pass_bytes(const Shape& s) {
  const double sum = has_dropout(s.m) ? 7 : 6;  // of a residual, with the mask
  const double ffn = s.m.gated ? 6 : 4;         // the activation, in one kernel
  switch (s.r.kernels) {
    case Kernels::kOwn:
      return {2 * (4 + sum), 0, ffn};
    case Kernels::kEager:
      // RMSNorm: to fp32 (6), square (8), mean (4), scale (8), to bf16 (6), weight (4). Rotation:
      // to fp32 (6), product (8), to bf16 (6); copies of keys and values for all heads (4). SiLU
      // (4) and its product (6). LayerNorm (4) and GELU (4) have a kernel each.
      return s.m.gated ? PassBytes{2 * (36 + sum), 24, 10} : PassBytes{2 * (4 + sum), 0, 4};
    case Kernels::kCompiled:
      // A norm (2) takes its input from the sum before it. Rotation: read and written (4).
      return {2 * (2 + sum), 4, ffn};
  }
  CLEAVE_BUG("unknown kernels");
}

/// Bytes that elementwise passes of a layer move in forward. Experts: tokens are copied to the rows
/// of their experts, and results are added up.
double elementwise_bytes(const Shape& s) {
  const PassBytes bytes = pass_bytes(s);
  const double sharded = s.r.sequence_parallel ? s.tp : 1;
  const int64_t rotated = s.m.gated ? (s.m.heads + s.m.kv_heads) * s.m.head_dim : 0;
  const double copies = s.m.experts > 0 ? 2 * 2 * (s.own_tokens + s.routed()) * s.hidden : 0;
  return s.wide * (s.tokens * s.hidden * bytes.hidden / sharded +
                   s.tokens * static_cast<double>(rotated) * bytes.rotated / s.tp +
                   s.routed() * static_cast<double>(s.m.ffn) * bytes.ffn / s.expert_tp + copies);
}

double elementwise_time(const Shape& s) {
  return elementwise_bytes(s) / (s.r.kernels == Kernels::kOwn ? s.rate : s.kernel_rate);
}

/// Seconds to convert what the products of a pass read to 8 or 4 bits: inputs in forward, gradients
/// of outputs in backward. A scale that follows from the values takes a read more than the
/// conversion, which writes the values also transposed, for the gradients of the weights
/// (Transformer Engine's Float8CurrentScaling; torchtitan's float8 does the same).
double conversion_time(const Shape& s, bool backward) {
  if (s.r.type <= MatrixType::kBf16) return 0;
  const double narrow = s.r.type == MatrixType::kFp8 ? 1 : 0.5;
  double elements = 0;
  for (const Product& p : products(s)) elements += p.count * p.rows * (backward ? p.n : p.k);
  return elements * (2 + 2 + 2 * narrow) / s.kernel_rate;
}

Pass forward_pass(const Shape& s) {
  Pass out;
  for (const Product& p : products(s)) {
    if (p.count > 0) out.gemm += p.count * gemm_time(s.c, s.r.type, p.rows, p.n, p.k);
  }
  out.attention = attention_time(s, false);
  out.memory_bound = elementwise_time(s) + conversion_time(s, false);
  out.tp = exposed_tp_time(s, out.gemm);
  out.ep = exposed_ep_time(s, out.compute());
  return out;
}

Pass backward_pass(const Shape& s, const Pass& forward) {
  Pass out;
  for (const Product& p : products(s)) {
    if (p.count == 0) continue;
    out.gemm += p.count * gemm_time(s.c, s.r.type, p.rows, p.k, p.n);
    if (!s.r.frozen) out.gemm += p.count * gemm_time(s.c, s.r.type, p.k, p.n, p.rows);
  }
  out.attention = attention_time(s, true);
  out.memory_bound = 2 * elementwise_time(s) + conversion_time(s, true);
  out.tp = exposed_tp_time(s, out.gemm);
  out.ep = exposed_ep_time(s, out.compute());
  switch (s.r.recompute) {
    case Keep::kAll:
      break;
    case Keep::kSelective:
      // Fused kernels keep nothing that this could save.
      if (!s.c.fused_attention) out.attention += forward.attention;
      break;
    case Keep::kSelectiveOps:
      out.gemm += forward.gemm / 2;
      out.memory_bound += forward.memory_bound;
      out.tp += forward.tp / 2;  // it keeps what is scattered, and gathers again
      break;
    case Keep::kFull:
      out.add(forward, 1);
      break;
  }
  return out;
}

/// The head and the loss of a micro-batch, forward and backward.
Pass head_pass(const Shape& s) {
  const double n = static_cast<double>(s.m.vocab) / s.tp;
  const MatrixType type = std::min(s.r.type, MatrixType::kBf16);
  Pass out;
  out.gemm =
      gemm_time(s.c, type, s.tokens, n, s.hidden) + gemm_time(s.c, type, s.tokens, s.hidden, n);
  if (!s.r.frozen) out.gemm += gemm_time(s.c, type, s.hidden, n, s.tokens);
  out.memory_bound = s.tokens * n * loss_bytes(s.r) / (s.r.fused_loss ? s.kernel_rate : s.rate);
  out.tp = tp_time(s);
  return out;
}

/// Number of layers of the slowest stage, and of the one with the head.
struct StageLayers {
  double most, edge;
};
StageLayers stage_layers(const TransformerSize& m, const ClusterRun& r) {
  const int64_t most = (m.layers + r.pp - 1) / r.pp;
  // If the stages cannot have equally many layers, the first and the last have fewer, to make room
  // for embedding and head, as with Megatron and DeepSpeed. Cleave's last stages have one more.
  const bool has_fewer = m.layers % r.pp != 0 && !r.more_at_end;
  return {static_cast<double>(most), static_cast<double>(has_fewer ? most - 1 : most)};
}

double embedding_parameters(const TransformerSize& m) {
  return static_cast<double>(m.vocab) * static_cast<double>(m.hidden);
}

/// Parameters of the experts of a layer on a device.
double own_expert_parameters(const TransformerSize& m, const ClusterRun& r) {
  return m.expert_parameters() / r.ep / (r.whole_experts ? 1 : r.tp);
}

/// Parameters of a layer on a device.
double own_layer_parameters(const TransformerSize& m, const ClusterRun& r) {
  return (m.layer_parameters() - m.expert_parameters()) / r.tp + own_expert_parameters(m, r);
}

/// Number of devices of a stage that have the same experts.
double expert_copies(const ClusterRun& r) {
  return double{1} * r.dp * r.cp * (r.whole_experts ? r.tp : 1) / r.ep;
}

/// Parameters of the largest device: of its layers, and of embedding and head.
struct DeviceParameters {
  double layers, ends;
};
DeviceParameters largest_device(const TransformerSize& m, const ClusterRun& r) {
  const StageLayers layers = stage_layers(m, r);
  const double copies = r.pp == 1 && !m.tied ? 2 : 1;
  const double layer = own_layer_parameters(m, r);
  const double ends = copies * embedding_parameters(m) / r.tp;
  if (layers.edge * layer + ends < layers.most * layer) return {layers.most * layer, 0};
  return {layers.edge * layer, ends};
}

/// Parameters of the device that has the most.
double device_parameters(const TransformerSize& m, const ClusterRun& r) {
  const DeviceParameters largest = largest_device(m, r);
  return largest.layers + largest.ends;
}

/// Parameters of the experts on the device with the most parameters. They are sharded apart from
/// the others, because fewer devices have copies of them.
double device_expert_parameters(const TransformerSize& m, const ClusterRun& r) {
  return stage_layers(m, r).most * own_expert_parameters(m, r);
}

/// Parameters of the largest device after sharding over the devices that have copies of them.
double sharded_parameters(const TransformerSize& m, const ClusterRun& r) {
  const double all = device_parameters(m, r);
  if (r.sharding == Sharding::kNone) return all;
  const double of_experts = device_expert_parameters(m, r);
  return (all - of_experts) / r.dp / r.cp + of_experts / expert_copies(r);
}

/// Bytes of the optimizer's states on the largest device.
double state_bytes(const TransformerSize& m, const ClusterRun& r) {
  const double shards = r.sharding == Sharding::kNone ? 1 : double{1} * r.dp * r.cp;
  return r.state_bytes * sharded_parameters(m, r) +
         r.more_end_bytes * largest_device(m, r).ends / shards;
}

/// Activation bytes of a layer that backward keeps, of one micro-batch: the terms of Korthikanti et
/// al. 2022 (arXiv:2205.05198, eq. 1 to 4), with ffn and kv_heads where they have 4h and h.
double kept_bytes(const Shape& s, Keep keep) {
  const double h = s.hidden;
  const double outer = s.r.sequence_parallel ? s.tp : 1;
  const double q = static_cast<double>(s.m.heads * s.m.head_dim);
  const double kv = static_cast<double>(s.m.kv_heads * s.m.head_dim);
  const double f = static_cast<double>(s.m.ffn);
  if (keep == Keep::kFull) return s.wide * s.tokens * 2 * h / outer;
  if (keep == Keep::kSelectiveOps) {
    // The layer's input; queries, values, attention's output and one product of the feed-forward
    // layer; the output of its last product, which only uncompiled layers keep.
    const double last = s.r.kernels != Kernels::kCompiled ? 2 * h / outer : 0;
    return s.wide * s.tokens * (2 * h / outer + (2 * q + 2 * kv + 2 * q + 2 * f) / s.tp + last);
  }
  const double replicated = has_dropout(s.m) ? 10 * h : 8 * h;
  const double sharded = 4 * q + 4 * kv;
  const double ffn = (s.m.gated ? 8 : 4) * f;
  double bytes = s.tokens * (replicated / outer + sharded / s.tp) + s.routed() * ffn / s.expert_tp;
  if (s.m.experts > 0) bytes += 2 * 2 * s.routed() * h;  // inputs and results of experts
  if (!s.c.fused_attention && keep == Keep::kAll) bytes += 5 * s.scores();
  return s.wide * bytes;
}

/// Whether FSDP gathers all weights of a stage once a step.
bool keeps_whole(const ClusterRun& r) {
  return r.pp > 1 && !r.regathers;
}

/// Micro-batches whose activations the first stage holds.
double micro_batches_held(const ClusterRun& r) {
  const double pp = r.pp;
  const double most = std::min(pp, static_cast<double>(r.micro_batches()));
  if (r.virtual_stages == 1) return most;
  return std::min(static_cast<double>(r.micro_batches()),
                  pp * (1 + (pp - 1) / (pp * r.virtual_stages)));
}

}  // namespace

double TransformerSize::layer_parameters() const {
  const double h = static_cast<double>(hidden);
  const double q = static_cast<double>(heads * head_dim);
  const double kv = static_cast<double>(kv_heads * head_dim);
  const double of_ffn = (gated ? 3 : 2) * h * static_cast<double>(ffn);
  const double router = h * static_cast<double>(experts);
  return h * (2 * q + 2 * kv) + (experts > 0 ? router + expert_parameters() : of_ffn);
}

double TransformerSize::expert_parameters() const {
  return static_cast<double>(experts) * (gated ? 3 : 2) * static_cast<double>(hidden) *
         static_cast<double>(ffn);
}

double TransformerSize::parameters() const {
  return static_cast<double>(layers) * layer_parameters() +
         (tied ? 1 : 2) * embedding_parameters(*this);
}

double TransformerSize::train_flops_per_token(int64_t seq_len) const {
  const double attention = static_cast<double>(layers) * static_cast<double>(heads * head_dim) *
                           static_cast<double>(seq_len);
  const double share = experts > 0 ? static_cast<double>(top_k) / static_cast<double>(experts) : 1;
  const double layer = layer_parameters() - expert_parameters() * (1 - share);
  return 6 * (static_cast<double>(layers) * layer + embedding_parameters(*this)) + 6 * attention;
}

int64_t ClusterRun::micro_batches() const {
  return std::max<int64_t>(1, global_batch / (dp * micro_batch));
}

double gemm_time(const Cluster& c, MatrixType type, double m, double n, double k) {
  const double tiles = std::ceil(m / 256) * std::ceil(n / 128);
  const double tiles_turned = std::ceil(m / 128) * std::ceil(n / 256);
  const auto used = [&](double count) {
    return m * n / (std::ceil(count / c.num_cores) * c.num_cores * 256 * 128);
  };
  const double filled = std::min(1.0, std::max(used(tiles), used(tiles_turned)));
  const double speed = c.matrix_flops.at(static_cast<size_t>(type)) * c.fitted.matrix_share;
  const double by_flops = 2 * m * n * k / (speed * filled * k / (k + 128));
  const double by_bytes = bytes_of(type) * (m * n + m * k + k * n) / c.memory_rate;
  return std::max(by_flops, by_bytes);
}

std::string refusal(const TransformerSize& m, const ClusterRun& r) {
  if (m.heads % r.tp != 0) return str("tp ", r.tp, " does not divide the ", m.heads, " heads");
  const int sharing = r.whole_experts ? r.tp * r.dp : r.dp;
  if (r.ep > 1 && (m.experts == 0 || m.experts % r.ep != 0 || sharing % r.ep != 0)) {
    return str("ep ", r.ep, " does not divide the ", m.experts, " experts and ",
               r.whole_experts ? "tp x dp " : "dp ", sharing);
  }
  const int64_t stages = int64_t{r.pp} * r.virtual_stages;
  if (stages > m.layers) return str(stages, " stages, but ", m.layers, " layers");
  if (r.virtual_stages > 1 && m.layers % stages != 0) {
    return str(stages, " stages do not divide the ", m.layers, " layers");
  }
  if (r.global_batch % (r.dp * r.micro_batch) != 0) {
    return str("batch ", r.global_batch, " is not a multiple of dp ", r.dp, " x micro-batch ",
               r.micro_batch);
  }
  return "";
}

ClusterMemory cluster_memory(const Cluster& c, const TransformerSize& m, const ClusterRun& r) {
  const Shape s{.c = c, .m = m, .r = r};
  const double parameters = device_parameters(m, r);
  const double sharded = sharded_parameters(m, r);
  ClusterMemory out;
  out.optimizer = state_bytes(m, r) + r.scratch_bytes * sharded;
  if (r.sharding == Sharding::kFsdp) {
    // Whole at a time: two layers and the embedding; the whole stage if the pipeline keeps it.
    const double whole = keeps_whole(r)
                             ? parameters
                             : 2 * own_layer_parameters(m, r) + embedding_parameters(m) / r.tp;
    out.weights = r.weight_bytes * whole;
    out.gradients = r.gradient_bytes * sharded + r.gradient_bytes * whole;
  } else {
    out.weights = r.weight_bytes * parameters;
    out.gradients = r.gradient_bytes * parameters;
  }
  // In fp32 the shard of the weights is not among the states.
  if (r.sharding != Sharding::kNone && r.type == MatrixType::kFp32) {
    out.weights += r.weight_bytes * sharded;
  }
  const StageLayers layers = stage_layers(m, r);
  const double scores = kept_bytes(s, Keep::kAll) - kept_bytes(s, Keep::kSelective);
  const double working = kWorkingLayers * kept_bytes(s, Keep::kSelective) + kWorkingScores * scores;
  const double kept = kept_bytes(s, r.recompute);
  const double first = layers.most * kept * micro_batches_held(r) + working;
  const double last = layers.edge * kept;
  // The logits are gone when the backward of the last layer begins.
  const double logits = s.tokens * static_cast<double>(m.vocab) / r.tp * logit_bytes(r);
  if (r.pp == 1 ? logits > working : last + logits > first) {
    out.activations = last;
    out.logits = logits;
  } else {
    out.activations = first;
  }
  out.runtime = c.fitted.runtime_bytes;
  return out;
}

namespace {

/// Sends of a device between stages in a step: one activation and one gradient for each micro-batch
/// and stage of the rank.
double pipeline_time(const Shape& s) {
  if (s.r.pp == 1) return 0;
  double bytes = s.boundary_bytes();
  double seconds = 0;
  if (s.r.sequence_parallel || s.r.scatters_p2p) {
    if (!s.r.sequence_parallel) {
      seconds +=
          all_reduce_time(s.c, bytes, {.size = s.r.tp, .stride = 1, .world = s.r.devices()}) / 2;
    }
    bytes /= s.tp;
  }
  seconds += send_time(s.c, bytes, s.r.devices() / s.r.pp, s.r.devices());
  return 2 * seconds * s.r.virtual_stages * static_cast<double>(s.r.micro_batches());
}

/// Seconds of gradient sync that compute does not hide.
double data_parallel_time(const Shape& s, double forward_s, double backward_s) {
  const LinkGroup group{.size = s.r.dp * s.r.cp, .stride = s.r.tp, .world = s.r.devices()};
  if (group.size == 1) return 0;
  // Every ep-th of the devices that share out the experts has the same experts.
  const LinkGroup copies{.size = static_cast<int>(expert_copies(s.r)),
                         .stride = (s.r.whole_experts ? 1 : s.r.tp) * s.r.ep,
                         .world = group.world};
  const double all = device_parameters(s.m, s.r);
  const double of_experts = device_expert_parameters(s.m, s.r) / all;
  const double gradients = s.r.sync_bytes * all;
  const double weights = s.r.weight_bytes * all;
  const auto half = [&](double bytes) {
    return (all_reduce_time(s.c, bytes * (1 - of_experts), group) +
            all_reduce_time(s.c, bytes * of_experts, copies)) /
           2;
  };
  if (s.r.sharding == Sharding::kFsdp) {
    const double micro = static_cast<double>(s.r.micro_batches());
    const double gathers = keeps_whole(s.r) ? 1 : micro;
    const double forward = std::max(0.0, half(weights) - forward_s);
    const double again = keeps_whole(s.r) ? 0 : half(weights);
    const double backward = std::max(0.0, again + half(gradients) - backward_s);
    const double first = (half(weights) + half(gradients)) / static_cast<double>(s.m.layers);
    return gathers * (forward + backward) + first;
  }
  const double sync =
      s.r.sharding == Sharding::kZero1 ? half(gradients) + half(weights) : 2 * half(gradients);
  if (!s.r.overlaps_dp) return sync;
  return std::max(sync / static_cast<double>(s.m.layers), sync - backward_s - forward_s);
}

}  // namespace

ClusterCost cluster_cost(const Cluster& c, const TransformerSize& m, const ClusterRun& r) {
  const Shape s{.c = c, .m = m, .r = r};
  const StageLayers layers = stage_layers(m, r);
  const double micro = static_cast<double>(r.micro_batches());
  const Pass forward = forward_pass(s);
  const Pass backward = backward_pass(s, forward);
  Pass layer = forward;
  layer.add(backward, 1);
  const Pass head = head_pass(s);
  const double passes = r.recompute == Keep::kFull ? 4 : 3;
  const double calls = passes * c.fitted.layer_call_s;
  const double launch = std::max(0.0, calls - layer.compute() - layer.messages());

  const auto stage_s = [&](double n, const Pass* end) {
    return n * (layer.compute() + layer.messages() + launch) +
           (end ? end->compute() + end->messages() : 0);
  };
  const bool head_decides =
      r.pp == 1 || stage_s(layers.edge, &head) > stage_s(layers.most, nullptr);
  const double n = head_decides ? layers.edge : layers.most;
  Pass stage;
  stage.add(layer, n * micro);
  if (head_decides) stage.add(head, micro);
  ClusterCost out;
  ClusterTime& t = out.time;
  t.gemm = stage.gemm;
  t.attention = stage.attention;
  t.memory_bound = stage.memory_bound;
  t.launch = n * launch * micro;
  t.tp = stage.tp;
  t.ep = stage.ep;
  // In the steady state of 1F1B each micro-batch waits for its messages, unless they are sent
  // beside the compute of another one.
  const double messages = pipeline_time(s);
  t.pp = r.overlaps_pp ? std::max(0.0, messages - stage.compute()) : messages;
  // The fill and drain pass through all stages, most of which have no head.
  t.bubble = (r.pp - 1.0) / r.virtual_stages * (stage_s(layers.most, nullptr) + messages / micro);
  const double pass_s = n * forward.compute();
  t.dp = data_parallel_time(s, pass_s, n * backward.compute());
  t.optimizer =
      (2 * state_bytes(m, r) + sharded_parameters(m, r) * (r.gradient_bytes + 2)) / s.rate;
  out.memory = cluster_memory(c, m, r);
  out.fits = out.memory.total() <= c.memory_bytes;
  return out;
}

}  // namespace cleave::inline planner
