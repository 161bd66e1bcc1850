#pragma once
#include <memory>
#include <vector>

#include "cleave/nn/layer.h"
#include "cleave/parallel/flat_shards.h"

namespace cleave {

/// How DataParallel treats weights and gradients.
struct DataParallelOptions {
  ShardPrecision precision{};
  bool shard_states = false;  ///< ZeRO-1: leaves and what an optimizer keeps of them are cut over dp
  /// Parameters whose gradients are still to be added to another rank's (tied across pipeline
  /// stages): each is cut by itself, so that both ranks cut alike.
  Parameters alone{};
  /// Of whole tensors' gradients that are summed at once, at least.
  int64_t bucket_bytes = int64_t{8} << 20;
};

/// Data parallelism of weights that are whole on every rank while forward reads them.
///
/// Where forward reads another type than gradients are summed in, it reads tensors beside the
/// leaves, and each micro-batch's gradient is added to one in the sum's type at once: bf16 weights
/// have fp32 gradients, 4 bytes an element from the second micro-batch to the end of the step. A
/// gradient that nothing is added to, of one micro-batch and one data-parallel rank, stays in bf16.
///
/// Gradients are summed over dp bucket by bucket, in the reverse order of the parameters. With
/// sum_during_backward() a bucket starts as soon as the last backward of the step is through with
/// its layers; the results are the same bits.
class DataParallel {
 public:
  /// Cuts the leaves, or lets them be. With memory or without.
  DataParallel(const Parameters& parameters, const Axis& dp, DataParallelOptions options);

  /// To be called when the leaves have got their values and after each optimizer step: what forward
  /// reads follows them. Collective.
  void leaves_changed();

  /// A step begins in which backward goes `num_passes` times through each layer; 0 where it is not
  /// known or does not end with weights' gradients: then all buckets wait for finish_gradients().
  void begin_step(int64_t num_passes) { num_passes_ = num_passes; }
  /// After the last backward of a step: leaves' gradients are complete, over tp too. A second call
  /// in a step changes nothing; Error(kUsage) where a backward ran since the first. Collective.
  void finish_gradients();
  /// Whether backward has left gradients that finish_gradients() has not seen.
  [[nodiscard]] bool has_unfinished_gradients() const;
  /// Forgets those.
  void drop_gradients();

 private:
  friend class GradSyncHook;
  friend void sum_during_backward(const std::shared_ptr<DataParallel>& data_parallel,
                                  const std::vector<Layer*>& in_order);

  struct Bucket {
    std::unique_ptr<FlatShards> shards;
    std::vector<std::shared_ptr<Tensor>> sums;  // by parameter; nullptr where autograd adds up
    size_t first_layer = 0;                     // in the order of calls, that has a part of it
    Reduction reduction{};
  };
  void add_bucket(Parameters parameters);
  void read_beside_leaf(Bucket& bucket, size_t i, const Tensor& value);
  [[nodiscard]] static Tensor& gradient_of(const Bucket& bucket, size_t i);
  [[nodiscard]] bool is_finished() const;
  void pass(size_t layer);
  void start_next();

  Axis dp_;
  DataParallelOptions options_;
  std::vector<Bucket> buckets_;      // in the order in which they start
  size_t num_started_ = 0;           // in this step
  int64_t num_passes_ = 0;           // through each layer in this step
  std::vector<int64_t> num_passed_;  // by layer
};

/// Lets the buckets of `data_parallel` start while backward goes on: `in_order` are the layers that
/// have its parameters, in the order of their calls. To be called once, after recompute() on them.
void sum_during_backward(const std::shared_ptr<DataParallel>& data_parallel,
                         const std::vector<Layer*>& in_order);

}  // namespace cleave
