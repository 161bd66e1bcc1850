#pragma once
#include <functional>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "cleave/compat/nxd_checkpoint.h"
#include "cleave/compat/parallel_state.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/linear.h"
#include "cleave/optim/optimizer.h"

/// The calls of NeuronX Distributed's guides under their names, on plain tensors. See docs/nxd.md;
/// docs/migration.md lists replacements for what is missing here.
///
/// All functions use the groups that initialize_model_parallel made on this rank's thread, and
/// throw Error(kUsage) before it.
namespace cleave::nxd {

using cleave::as_list;
using cleave::AsList;
using cleave::destroy_model_parallel;
using cleave::divide;
using cleave::get_data_parallel_group;
using cleave::get_data_parallel_rank;
using cleave::get_data_parallel_size;
using cleave::get_data_parallel_src_rank;
using cleave::get_data_parallel_world_size;
using cleave::get_pipeline_model_parallel_group;
using cleave::get_pipeline_model_parallel_next_rank;
using cleave::get_pipeline_model_parallel_prev_rank;
using cleave::get_pipeline_model_parallel_rank;
using cleave::get_pipeline_model_parallel_size;
using cleave::get_tensor_model_parallel_group;
using cleave::get_tensor_model_parallel_rank;
using cleave::get_tensor_model_parallel_size;
using cleave::get_tensor_model_parallel_src_rank;
using cleave::get_tensor_parallel_size;
using cleave::get_world_group;
using cleave::initialize_model_parallel;
using cleave::model_parallel_is_initialized;

/// Base of the parallel layers: the group they are sharded over, their dtype and device.
class ParallelLayer {
 public:
  virtual ~ParallelLayer() = default;
  /// Allocates those of its parameters that have no memory yet, with initial values that are a
  /// function of `seed`, name and position in the whole tensor.
  virtual void allocate(uint64_t seed) = 0;
  [[nodiscard]] const Axis& group() const { return group_; }
  /// Device that the caller asked for; nullopt: the model's.
  [[nodiscard]] const std::optional<at::Device>& device() const { return device_; }

 protected:
  ParallelLayer(const std::optional<Axis>& group, at::ScalarType dtype,
                const std::optional<at::Device>& device)
      : group_(group ? *group : get_tensor_model_parallel_group()),
        dtype_(dtype),
        device_(device) {}
  Axis group_;
  at::ScalarType dtype_;
  std::optional<at::Device> device_;
};

/// Columns or rows sharded in whole heads, without and with the zero heads after them. See
/// pad_model.
struct HeadShards {
  SplitPtr real{};    ///< of the weights
  SplitPtr padded{};  ///< of the activations; null: not padded
};

struct ColumnParallelLinearOptions {
  bool bias = true;
  bool gather_output = true;               ///< the whole output on every rank, else its columns
  bool sequence_parallel_enabled = false;  ///< sequence-sharded input; needs gather_output=false
  at::ScalarType dtype = at::kFloat;
  std::optional<at::Device> device{};  ///< must be where the model is moved to
  int64_t stride = 1;                  ///< number of fused matrices, each sharded by itself
  std::optional<Init> init_method{};   ///< of the weight; else U(-1/sqrt(in), 1/sqrt(in))
  std::optional<int64_t> sequence_dimension{};  ///< else the last but one: 1 of [B, T, D]
  bool skip_bias_add = false;                   ///< the caller adds bias() to the result
  bool keep_master_weight = false;              ///< not supported
  bool pad = false;                             ///< not supported: any size can be sharded
  std::optional<Axis> tensor_model_parallel_group{};
};

/// Y = X W^T + b with W's rows, so Y's columns, sharded over the group; any size can be sharded.
///
///   X [.., in], whole; with sequence parallel [.., t, in], this rank's t of the T tokens
///   weight [out/tp, in]   bias [out/tp]; with gather_output and skip_bias_add whole, [out]
///   Y [.., out], whole; without gather_output [.., out/tp], this rank's columns of all T tokens
///
/// t may differ between ranks. X's gradient is summed over the ranks and sharded like X. Throws
/// Error(kUsage) for incompatible or unsupported options, Error(kShape) for sizes.
class ColumnParallelLinear : public Linear, public ParallelLayer {
 public:
  ColumnParallelLinear(int64_t input_size, int64_t output_size,
                       const ColumnParallelLinearOptions& options = {});
  using Layer::operator();
  /// Call on plain tensors: takes this rank's part of X, returns this rank's part of Y.
  Tensor operator()(const Tensor& x);
  /// The bias; with skip_bias_add the caller adds its use() to the result.
  [[nodiscard]] const std::shared_ptr<Parameter>& bias() const;

  void allocate(uint64_t seed) override;
  /// For messages: "model.query: ColumnParallelLinear(768, 768)".
  [[nodiscard]] std::string title() const;
  [[nodiscard]] bool is_padded() const { return heads_.padded != nullptr; }
  /// The sharding for these heads; does not change the layer. Throws Error(kShape) if zeros would
  /// change results.
  [[nodiscard]] HeadShards head_shards(int64_t n_heads, int64_t n_padded) const;
  /// Applies a sharding, before allocation. The output gets zero columns for the padded heads.
  void set_head_shards(const HeadShards& shards);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  ColumnParallelLinearOptions options_;
  std::shared_ptr<Parameter> skipped_bias_;
  HeadShards heads_;
};

struct RowParallelLinearOptions {
  bool bias = true;
  bool input_is_parallel = false;          ///< X is this rank's columns, else whole
  bool sequence_parallel_enabled = false;  ///< sequence-sharded output
  at::ScalarType dtype = at::kFloat;
  std::optional<at::Device> device{};
  int64_t stride = 1;
  std::optional<Init> init_method{};
  std::optional<int64_t> sequence_dimension{};
  bool skip_bias_add = false;
  bool keep_master_weight = false;
  bool pad = false;
  bool reduce_output = true;  ///< false: Y is this rank's partial sum
  std::optional<Axis> tensor_model_parallel_group{};
};

/// Y = X W^T + b with W's columns, so X's, sharded over the group; b is added once, after the sum.
///
///   X [.., in], or [.., in/tp] with input_is_parallel
///   weight [out, in/tp]   bias [out]   Y [.., out], or [.., t, out] of T with sequence parallel
///
/// Options and errors as for ColumnParallelLinear.
class RowParallelLinear : public Linear, public ParallelLayer {
 public:
  RowParallelLinear(int64_t input_size, int64_t output_size,
                    const RowParallelLinearOptions& options = {});
  using Layer::operator();
  /// Call on plain tensors: takes this rank's part of X, returns this rank's part of Y.
  Tensor operator()(const Tensor& x);
  /// The bias; with skip_bias_add the caller adds its use() to the result.
  [[nodiscard]] const std::shared_ptr<Parameter>& bias() const;
  [[nodiscard]] bool input_is_parallel() const { return options_.input_is_parallel; }

  void allocate(uint64_t seed) override;
  /// For messages: "model.output: RowParallelLinear(768, 768)".
  [[nodiscard]] std::string title() const;
  [[nodiscard]] bool is_padded() const { return heads_.padded != nullptr; }
  /// The sharding for these heads; does not change the layer. Throws Error(kShape) for sizes.
  [[nodiscard]] HeadShards head_shards(int64_t n_heads, int64_t n_padded) const;
  /// Applies a sharding, before allocation. The input's columns of padded heads are ignored.
  void set_head_shards(const HeadShards& shards);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override;

 private:
  RowParallelLinearOptions options_;
  std::shared_ptr<Parameter> skipped_bias_;
  HeadShards heads_;
};

struct ParallelEmbeddingOptions {
  std::optional<int64_t> padding_idx{};  ///< this row is initialized to zeros and gets no gradient
  Init init_method = Init::normal(1);
  std::optional<at::Device> device{};
  at::ScalarType dtype = at::kFloat;
  bool shard_across_embedding = false;     ///< shard columns, not rows
  bool sequence_parallel_enabled = false;  ///< sequence-sharded output
  std::optional<int64_t> sequence_dimension{};
  bool collect_output = true;  ///< false: Y is this rank's partial sum, or its columns
  std::optional<Axis> tensor_model_parallel_group{};
};

/// Embedding whose table is sharded over the group by rows (the vocabulary) or columns.
///
///   ids [B, T] int64, the same on every rank of the group   weight [V/tp, D] or [V, D/tp]
///   Y [B, T, D], or [B, t, D] with sequence parallel
///
/// Throws Error(kShape) for an id outside [0, V).
class ParallelEmbedding : public Embedding, public ParallelLayer {
 public:
  ParallelEmbedding(int64_t num_embeddings, int64_t embedding_dim,
                    const ParallelEmbeddingOptions& options = {});
  using Layer::operator();
  /// Call on plain tensors.
  Tensor operator()(const Tensor& ids);

  void allocate(uint64_t seed) override;
};

/// Calls a replicated layer on plain tensors: x and the result are replicated over the
/// tensor-parallel group. Throws Error(kShape) for a layer with a sharded output.
Tensor call(Layer& layer, const Tensor& x, const Context& context = {});
/// The same between sequence-parallel layers, for a norm or dropout: x and the result are this
/// rank's tokens, of any number. So gradients of the layer's parameters are partial sums, which
/// clip_grad_norm and optimizer_step complete. Throws Error(kShape) for a result with another
/// sharding. Collective.
Tensor call_on_tokens(Layer& layer, const Tensor& x, const Context& context = {},
                      std::optional<int64_t> sequence_dimension = {});

// Mappings over the tensor-parallel group, with the gradients of docs/nxd.md's table. Shards may be
// uneven; the ranks exchange the sizes before a gather.
/// Returns x; sums the gradient. Do not change the result in place: it is x's memory.
Tensor copy_to_tensor_model_parallel_region(const Tensor& x);
/// Sums x over the ranks; passes the gradient unchanged.
Tensor reduce_from_tensor_model_parallel_region(const Tensor& x);
/// This rank's shard of the last dim of x, which is the same on every rank; gathers the gradient.
Tensor scatter_to_tensor_model_parallel_region(const Tensor& x);
/// Gathers the ranks' shards along the last dim; shards the gradient.
Tensor gather_from_tensor_model_parallel_region(const Tensor& x);
/// This rank's shard of dim `sequence_dimension`; gathers the gradient.
Tensor scatter_to_sequence_parallel_region(const Tensor& x, int64_t sequence_dimension = 1);
/// Gathers the ranks' shards. Before sharded work (`to_model_parallel`) the gradient is
/// reduce-scattered; before work that every rank repeats it is only sharded.
Tensor gather_from_sequence_parallel_region(const Tensor& x, int64_t sequence_dimension = 1,
                                            bool to_model_parallel = true);
/// This rank's shard of the sum over ranks; gathers the gradient.
Tensor reduce_scatter_to_sequence_parallel_region(const Tensor& x, int64_t sequence_dimension = 1);

/// Cross entropy per token over logits with sharded classes, which are not gathered.
///
///   parallel_logits [.., V/tp], may be uneven or empty; not changed
///   labels [..] int64, the same on every rank, in [0, V) or -100: ignored, loss 0
///   result [..] fp32 or wider, the same on every rank
///
/// `label_smoothing` in [0, 1] goes only to the other classes of the whole vocabulary (NeMo's
/// definition); nn/cross_entropy.h's default is torch's. Throws Error(kShape, kUsage).
Tensor parallel_cross_entropy(const Tensor& parallel_logits, const Tensor& labels,
                              double label_smoothing = 0);

/// Number of zero heads that make `n_head` divisible by `tp`.
int64_t get_number_of_extra_heads(int64_t n_head, int64_t tp);

/// num_heads_padded / num_heads, exact.
struct HeadRatio {
  int64_t padded = 1;
  int64_t heads = 1;
  /// size * padded / heads. Throws Error(kShape) if that is not an integer.
  [[nodiscard]] int64_t of(int64_t size) const;
};

/// Predicates on a layer's class; classes<A, B>() makes them.
using LayerClasses = std::vector<bool (*)(const Layer&)>;

/// Predicates that match layers of these classes or derived from them.
template <class... T>
LayerClasses classes() {
  return {[](const Layer& layer) { return dynamic_cast<const T*>(&layer) != nullptr; }...};
}

struct PadModelOptions {
  LayerClasses wrapped_classes{};  ///< padded with their children; empty: the whole model
  /// Called with each padded layer (of a wrapped class, or every layer) before its linears change.
  std::function<void(Layer&, const HeadRatio&)> pad_hook_fn{};
};

/// Runs a model of `n_heads` heads on `tp_degree` ranks that do not divide them: columns and rows
/// are sharded in whole heads, and activations are padded with zero heads to the same number of
/// heads on every rank. Results, gradients and checkpoints stay those of the unpadded model.
///
/// Call it before move_model_to_device; the model computes with divide(n_heads +
/// get_number_of_extra_heads(n_heads, tp), tp) heads per rank. Throws, without changing the model,
/// Error(kShape) for a layer that must not be padded (a vocabulary projection) or does not consist
/// of n_heads, Error(kUsage) if called from its own hook, twice, or for another degree.
void pad_model(Layer& model, int64_t tp_degree, int64_t n_heads,
               const PadModelOptions& options = {});

/// Puts a model on `device`: names its parameters, initializes those without memory, moves the
/// rest. Sharding and tying are kept. `options.dtype` applies to layers without their own dtype.
/// Call it on the whole model, before an optimizer is made. Throws Error(kUsage) if a layer was
/// made for another device.
void move_model_to_device(Layer& model, at::Device device, const MaterializeOptions& options = {});

/// clip_grad_norm for a list.
double clip_grad_norm_of(const Parameters& parameters, double max_norm, double norm_type);

/// Reduces the gradients, then clips them: sums partial gradients over the tensor-parallel group,
/// averages over the data-parallel group, and multiplies by max_norm / (norm + 1e-6) unless that is
/// above 1. `parameters` is any range of them. Returns the global norm, which counts every element
/// once and is the same on every rank; `norm_type` is its power, or infinity.
///
/// Gradients that are already reduced are not reduced again: optimizer_step after this, FSDP over
/// the data-parallel group (which averages), a Zero1Optimizer over it after reduce_gradients(), and
/// NxDPPModel::run_train, whose norm is that of all stages. Throws Error(kNumerics) with the first
/// parameter whose gradient is not finite, Error(kUsage) if backward ran after the gradients were
/// reduced, before ZeRO-1 reduced them, or if the groups have several stages and no pipeline
/// computed the gradients. Write the namespace: cleave::clip_grad_norm reduces nothing, so its
/// result differs.
template <std::ranges::input_range Range>
double clip_grad_norm(Range&& parameters, double max_norm, double norm_type = 2) {
  Parameters list;
  for (auto&& p : parameters) list.push_back(p);
  return clip_grad_norm_of(list, max_norm, norm_type);
}

/// Averages the gradients over `groups`, unless clip_grad_norm already did, and updates. `groups`
/// is get_data_parallel_group(as_list); throws Error(kUsage) for any other.
void optimizer_step(Optimizer& optimizer, const std::vector<std::vector<int>>& groups, double lr);
/// Averages over all ranks. Throws Error(kUsage) if they hold shards of a model, not copies.
void optimizer_step(Optimizer& optimizer, double lr);

}  // namespace cleave::nxd
