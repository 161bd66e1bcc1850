#pragma once
#include <cstdint>
#include <string>

#include "cleave/planner/cluster.h"

namespace cleave::inline planner {

/// The sizes of a transformer.
struct TransformerSize {
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  bool gated = false;   ///< three matrices in a feed-forward layer, not two
  bool tied = true;     ///< embedding and head share a matrix
  bool dropout = true;  ///< of layers that are not gated; gated ones have none
  int64_t experts =
      0;              ///< feed-forward layers of width ffn in each layer; 0: one, without a router
  int64_t top_k = 1;  ///< experts of a token
  [[nodiscard]] double layer_parameters() const;
  /// Parameters of all experts of a layer.
  [[nodiscard]] double expert_parameters() const;
  [[nodiscard]] double parameters() const;
  /// Flops of a step per token, without recomputation: 6 for each parameter of the layers and the
  /// head (of experts only those that the token is sent to), and the products of attention, of
  /// which causal masks need half.
  [[nodiscard]] double train_flops_per_token(int64_t seq_len) const;
};

/// What backward recomputes: nothing; attention's scores; also about half of the matrix products
/// (torchtitan's selective per operation); all of a layer.
enum class Keep : uint8_t { kAll, kSelective, kSelectiveOps, kFull };
/// Which kernels run the elementwise passes: the software's own, PyTorch's (one for each
/// operation), or a compiler's (torch.compile). Backward of compiled layers keeps nothing that it
/// does not read, such as the output of a layer's last product.
enum class Kernels : uint8_t { kOwn, kEager, kCompiled };
/// What data-parallel devices share.
enum class Sharding : uint8_t { kNone, kZero1, kFsdp };

/// A training run on a cluster. tp * dp * pp * cp devices.
struct ClusterRun {
  int tp = 1, pp = 1, dp = 1, cp = 1;
  int ep = 1;  ///< devices that share out the experts; divides dp, or tp x dp if experts are whole
  int virtual_stages = 1;
  bool sequence_parallel = false;
  Sharding sharding = Sharding::kNone;
  Keep recompute = Keep::kAll;
  Kernels kernels = Kernels::kOwn;
  int64_t micro_batch = 1, global_batch = 1, seq_len = 2048;
  MatrixType type = MatrixType::kBf16;
  double element_bytes = 2;    ///< of an activation
  double weight_bytes = 2;     ///< per parameter, of the copy that forward reads
  double gradient_bytes = 2;   ///< per parameter, kept
  double sync_bytes = 2;       ///< per parameter, summed over data-parallel devices
  double state_bytes = 12;     ///< per parameter: fp32 weights and two moments
  double more_end_bytes = 0;   ///< further states, per parameter of embedding and head
  double scratch_bytes = 0;    ///< per parameter, sharded as the states are
  bool regathers = false;      ///< FSDP frees gathered weights after each layer in pipelines too
  bool overlaps_dp = false;    ///< gradient sync runs beside backward
  bool fused_loss = false;     ///< the loss has no fp32 copies of the logits
  bool frozen = false;         ///< weights get no gradient; adapters themselves are not counted
  bool overlaps_tp = false;    ///< tp's collectives run beside the matrix products that they feed
  bool overlaps_pp = false;    ///< messages between stages run beside compute
  bool overlaps_ep = false;    ///< experts' messages run beside the compute of another micro-batch
  bool scatters_p2p = false;   ///< a tp rank sends its share of an activation, not all of it
  bool more_at_end = false;    ///< layers beyond an equal number are in the last stages, not inside
  bool whole_experts = false;  ///< tp does not split experts: ep devices of tp x dp share them out
  [[nodiscard]] int64_t devices() const { return int64_t{tp} * pp * dp * cp; }
  [[nodiscard]] int64_t micro_batches() const;
};

/// Bytes of the device that needs the most, by kind.
struct ClusterMemory {
  double weights = 0, gradients = 0, optimizer = 0, activations = 0, logits = 0, runtime = 0;
  /// Their sum.
  [[nodiscard]] double total() const {
    return weights + gradients + optimizer + activations + logits + runtime;
  }
};

/// Seconds of a step, by kind.
struct ClusterTime {
  double gemm = 0, attention = 0, memory_bound = 0, launch = 0;
  double tp = 0, pp = 0, dp = 0, ep = 0;  ///< communication that does not overlap
  double bubble = 0, optimizer = 0;
  /// Their sum.
  [[nodiscard]] double total() const {
    return gemm + attention + memory_bound + launch + tp + pp + dp + ep + bubble + optimizer;
  }
};

/// What a run needs.
struct ClusterCost {
  ClusterMemory memory;
  ClusterTime time;
  bool fits = false;
};

/// Why a layout is impossible; empty if it is possible.
std::string refusal(const TransformerSize& model, const ClusterRun& run);

/// Memory of the fullest pipeline stage.
ClusterMemory cluster_memory(const Cluster& c, const TransformerSize& m, const ClusterRun& r);

/// Time and memory of a run.
ClusterCost cluster_cost(const Cluster& c, const TransformerSize& m, const ClusterRun& r);

/// Seconds of a product [m, k] x [k, n] on a device: its matrix speed, times the share of its cores
/// that the tiles of 256 x 128 fill, or the time to read and write the matrices.
double gemm_time(const Cluster& c, MatrixType type, double m, double n, double k);

}  // namespace cleave::inline planner
