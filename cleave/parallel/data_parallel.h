#pragma once
#include <memory>
#include <vector>

#include "cleave/nn/layer.h"
#include "cleave/parallel/flat_shards.h"

namespace cleave {

/// How DataParallel treats weights and gradients.
struct DataParallelOptions {
  ShardPrecision precision{};
  bool shard_states = false;  ///< ZeRO-1: leaves and optimizer states are sharded over dp
  /// Parameters whose gradients are also summed with another rank's (tied across pipeline stages).
  /// Each gets its own bucket, so that all ranks shard it the same way.
  Parameters separate_buckets{};
  /// A bucket is closed when the gradients of its parameters, each counted whole, reach this size.
  int64_t bucket_bytes = int64_t{8} << 20;
};

/// Data parallelism for weights that are whole on every data-parallel rank during forward.
///
/// If the compute type differs from the type of gradient sums, forward reads copies of the leaves,
/// and each micro-batch's gradient is added immediately to a sum in the wider type: bf16 weights
/// have fp32 gradients, 4 bytes an element from the second micro-batch to the end of the step. With
/// one micro-batch and one data-parallel rank nothing is added, and gradients stay in bf16.
///
/// Gradients are summed over dp bucket by bucket, in the reverse order of the parameters. With
/// sum_during_backward() a bucket starts as soon as the step's last backward has finished its
/// layers; the results are the same bits.
class DataParallel {
 public:
  /// Shards the leaves if `shard_states` is set. Parameters may be unallocated.
  DataParallel(const Parameters& parameters, const Axis& dp, DataParallelOptions options);

  /// Updates the weights that forward reads from the leaves. Call it after the leaves are filled
  /// and after each optimizer step. Collective.
  void refresh_weights();

  /// Begins a step in which backward runs `num_passes` times through each layer. With 0 all buckets
  /// wait for finish_gradients(): for an unknown number, or a backward that defers weight
  /// gradients.
  void begin_step(int64_t num_passes) { num_passes_ = num_passes; }
  /// Completes the leaves' gradients, over tp too. Call it after the last backward of a step. A
  /// second call in a step changes nothing; Error(kUsage) if a backward ran since the first.
  /// Collective.
  void finish_gradients();
  /// Whether backward has left gradients that finish_gradients() has not completed.
  [[nodiscard]] bool has_unfinished_gradients() const;
  /// Discards those gradients.
  void drop_gradients();

 private:
  friend class GradSyncHook;
  friend void sum_during_backward(const std::shared_ptr<DataParallel>& data_parallel,
                                  const std::vector<Layer*>& in_order);

  struct Bucket {
    std::unique_ptr<FlatShards> shards;
    std::vector<std::shared_ptr<Tensor>> sums;  // by parameter; nullptr where autograd accumulates
    size_t first_layer = 0;                     // the first called layer with its parameters
    GradientReduction reduction{};
  };
  void add_bucket(Parameters parameters);
  void set_compute_copy(Bucket& bucket, size_t i, const Tensor& value);
  [[nodiscard]] static Tensor& gradient_of(const Bucket& bucket, size_t i);
  [[nodiscard]] bool is_finished() const;
  void finish_pass(size_t layer);
  void start_next();

  Axis dp_;
  DataParallelOptions options_;
  std::vector<Bucket> buckets_;      // in the order in which they start
  size_t num_started_ = 0;           // in this step
  int64_t num_passes_ = 0;           // through each layer in this step
  std::vector<int64_t> num_passed_;  // passes finished in this step, by layer
};

/// Lets the buckets of `data_parallel` start during backward. `in_order`: the layers with its
/// parameters, in call order. Call it once, after recompute() on those layers.
void sum_during_backward(const std::shared_ptr<DataParallel>& data_parallel,
                         const std::vector<Layer*>& in_order);

}  // namespace cleave
