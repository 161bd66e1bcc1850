#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "cleave/nn/layer.h"
#include "cleave/parallel/config.h"
#include "cleave/parallel/flat_shards.h"
#include "cleave/pipeline/pipeline_model.h"

namespace cleave::inline parallel {

/// How GradientSync treats weights and gradients.
struct GradientSyncOptions {
  /// kZero1: leaves and optimizer states are sharded over dp. kFsdp: fully_shard has wrapped the
  /// layers, which sum their gradients during backward.
  DataSharding sharding = DataSharding::kNone;
  /// nullopt: the types of the leaves, which must have memory by then.
  std::optional<ShardPrecision> precision = ShardPrecision{};
  /// The pipeline that computes the gradients; it must outlive backward. Null: there is none.
  const PipelineModel* pipeline = nullptr;
  /// A bucket is closed when the gradients of its parameters, each counted whole and in the type in
  /// which they are sent, reach this size.
  int64_t bucket_bytes = int64_t{8} << 20;
};

/// Completes the gradients of training steps: over the tensor-parallel ranks where they are
/// partial, over the data-parallel ranks (of experts over Parameter::copies()), and over the
/// pipeline stages that share a parameter.
///
///   GradientSync gradients(model.parameters(), mesh["dp"]);
///   every step:
///     gradients.begin(num_micro_batches);
///     ... backward of each micro-batch ...
///     gradients.complete();
///     clip_grad_norm(model.parameters(), 1.0);
///     optimizer.step(lr);
///     optimizer.zero_grad();
///
/// The loss is divided by the global number of labels, so that sums are the gradient of the global
/// mean. Norms, clipping and optimizers refuse gradients that are not complete.
///
/// If the compute type differs from the type of gradient sums, forward reads copies of the leaves,
/// and each micro-batch's gradient is added immediately to a sum in the wider type: bf16 weights
/// have fp32 gradients, 4 bytes an element from the second micro-batch to the end of the step. With
/// one micro-batch and one data-parallel rank nothing is added, and gradients stay in bf16.
///
/// Gradients are summed over dp bucket by bucket, in the reverse order of the parameters. With
/// sum_during_backward() a bucket starts as soon as the step's last backward has finished its
/// layers; the results are the same bits.
class GradientSync {
 public:
  /// `parameters`: those that have memory on this rank, or get it later. Frozen ones are ignored.
  /// ZeRO-1 shards the leaves here.
  GradientSync(const Parameters& parameters, const Axis& dp,
               const GradientSyncOptions& options = {});

  [[nodiscard]] const Parameters& parameters() const { return parameters_; }

  /// Updates the weights that forward reads from the leaves. Call it after the leaves are filled
  /// and after each optimizer step. The first call, or else the first complete(), compares the
  /// weights of the data-parallel ranks: Error(kUsage) if they differ. Collective.
  void refresh_weights();

  /// Begins a step of `num_micro_batches` forward and backward passes. With 0, for an unknown
  /// number, and without this call, all buckets wait for complete(). zero_grad() before
  /// complete() discards a step; all ranks must call it. Throws Error(kUsage) if gradients of an
  /// earlier step or backward are left, or if a leaf was filled without refresh_weights(); backward
  /// throws it if it runs more than `num_micro_batches` times. Collective if a step was discarded.
  void begin(size_t num_micro_batches);
  /// Completes the leaves' gradients. Call it after the last backward of a step. A second call in a
  /// step changes nothing; Error(kUsage) if a backward ran since the first. Collective.
  void complete();
  /// Whether backward has left gradients on copies of the leaves that complete() has not summed.
  [[nodiscard]] bool has_incomplete_gradients() const;

 private:
  friend class GradSyncHook;
  friend void sum_during_backward(const std::shared_ptr<GradientSync>& sync,
                                  const std::vector<Layer*>& in_order);

  struct Bucket {
    std::unique_ptr<FlatShards> shards;
    ShardPrecision precision;
    std::vector<std::shared_ptr<Tensor>> sums{};  // by parameter; nullptr: autograd accumulates
    size_t first_layer = 0;                       // the first called layer with its parameters
    GradientReduction reduction{};
  };
  void add_buckets(const Parameters& parameters, const ShardPrecision& precision);
  void add_buckets_over(const Parameters& parameters, const ShardPrecision& precision);
  void add_bucket(Parameters parameters, const ShardPrecision& precision);
  [[nodiscard]] static at::ScalarType read_type_of(const Bucket& bucket);
  /// The data-parallel ranks that have the parameter.
  [[nodiscard]] const std::shared_ptr<const Axis>& data_of(const Parameter& p) const {
    return p.copies() ? copies_ : dp_;
  }
  void record_on_leaves() const;
  void set_compute_copy(Bucket& bucket, size_t i, const Tensor& value);
  [[nodiscard]] static Tensor& gradient_of(const Bucket& bucket, size_t i);
  [[nodiscard]] bool is_complete() const;
  [[nodiscard]] bool is_zero1() const { return options_.sharding == DataSharding::kZero1; }
  /// Whether copies of the leaves have gradients of which no sum was started.
  [[nodiscard]] bool has_unsummed_copies() const;
  void check_types() const;
  void check_reads_copies() const;
  void compare_weights_once();
  void check_same_weights(const Axis& data);
  void reset_step();
  void finish_pass(size_t layer);
  void start_next();
  void sum_buckets();

  Parameters parameters_;
  std::shared_ptr<const Axis> dp_, copies_;  // the leaves refer to them; copies_: of experts
  GradientSyncOptions options_;
  std::vector<Bucket> buckets_;  // in the order in which they start; none with FSDP
  bool has_compared_weights_ = false;
  size_t num_started_ = 0;          // in this step
  size_t num_passes_ = 0;           // through each layer in this step
  std::vector<size_t> num_passed_;  // calls finished in this step, by layer
  std::vector<size_t> num_calls_;   // of each layer in a pass, counted at its first call
};

/// Lets the buckets of `sync` start during backward. `in_order`: the layers with its parameters, in
/// call order. Call it once, after recompute() on those layers.
void sum_during_backward(const std::shared_ptr<GradientSync>& sync,
                         const std::vector<Layer*>& in_order);

}  // namespace cleave::inline parallel
