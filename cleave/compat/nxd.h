#pragma once
#include <functional>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "cleave/compat/nxd_checkpoint.h"
#include "cleave/mesh/parallel_state.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/linear.h"
#include "cleave/optim/optimizer.h"

/// The calls of NeuronX Distributed's guides under their names, on plain tensors. docs/nxd.md is
/// their page; docs/migration.md says what to write instead of what is not here.
///
/// All work on the groups of this rank's thread that initialize_model_parallel made; before it each
/// throws Error(kUsage).
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

/// What the parallel layers share: the group they are split over and memory of their own type.
class ParallelLayer {
 public:
  virtual ~ParallelLayer() = default;
  /// Gives those of its parameters that have no memory their starting values, functions of `seed`,
  /// name and place in the whole.
  virtual void allocate(uint64_t seed) = 0;
  [[nodiscard]] const Axis& group() const { return group_; }
  /// Where the caller asked the weights to be; nothing: wherever the model goes.
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

/// Columns or rows in whole heads, and with heads of zeros behind them. See pad_model.
struct HeadCuts {
  const Split* real = nullptr;    ///< what the weights hold
  const Split* padded = nullptr;  ///< what activations have; null: not padded
};

struct ColumnParallelLinearOptions {
  bool bias = true;
  bool gather_output = true;               ///< the whole output on every rank, else its columns
  bool sequence_parallel_enabled = false;  ///< input cut along the sequence; needs no gather_output
  at::ScalarType dtype = at::kFloat;
  std::optional<at::Device> device{};           ///< must be where the model is moved to
  int64_t stride = 1;                           ///< matrices fused side by side, each cut by itself
  std::optional<Init> init_method{};            ///< of the weight; else U(-1/sqrt(in), 1/sqrt(in))
  std::optional<int64_t> sequence_dimension{};  ///< else the last but one: 1 of [B, T, D]
  bool skip_bias_add = false;                   ///< the caller adds bias() to the result
  bool keep_master_weight = false;              ///< refused
  bool pad = false;                             ///< refused: sizes need not divide
  std::optional<Axis> tensor_model_parallel_group{};
};

/// Y = X W^T + b with W's rows, so Y's columns, cut over the group; sizes need not divide.
///
///   X [.., in], or [.., t, in] of T with sequence parallel: t may differ between ranks
///   weight [out/tp, in]   bias [out/tp]   Y [.., out], or [.., out/tp] without gather_output
///
/// Its input's gradient leaves whole (or cut as X was). Throws Error(kUsage) for options that
/// exclude each other or that are refused, Error(kShape) for sizes.
class ColumnParallelLinear : public Linear, public ParallelLayer {
 public:
  ColumnParallelLinear(int64_t input_size, int64_t output_size,
                       const ColumnParallelLinearOptions& options = {});
  using Layer::operator();
  /// The call on plain tensors: this rank's part of X gives this rank's part of Y.
  Tensor operator()(const Tensor& x);
  /// This layer's bias; with skip_bias_add the caller adds its use() to the result.
  [[nodiscard]] const std::shared_ptr<Parameter>& bias() const;

  void allocate(uint64_t seed) override;
  /// For messages: "model.query: ColumnParallelLinear(768, 768)".
  [[nodiscard]] std::string title() const;
  [[nodiscard]] bool is_padded() const { return heads_.padded != nullptr; }
  /// How heads would be cut; nothing changes. Throws Error(kShape) where zeros would change
  /// results.
  [[nodiscard]] HeadCuts head_cuts(int64_t n_heads, int64_t n_padded) const;
  /// Cuts so; there is no memory yet. The output gets the padded heads' columns, zeros.
  void set_head_cuts(const HeadCuts& cuts);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  ColumnParallelLinearOptions options_;
  std::shared_ptr<Parameter> skipped_bias_;
  HeadCuts heads_;
};

struct RowParallelLinearOptions {
  bool bias = true;
  bool input_is_parallel = false;          ///< X is this rank's columns, else whole
  bool sequence_parallel_enabled = false;  ///< output cut along the sequence
  at::ScalarType dtype = at::kFloat;
  std::optional<at::Device> device{};
  int64_t stride = 1;
  std::optional<Init> init_method{};
  std::optional<int64_t> sequence_dimension{};
  bool skip_bias_add = false;
  bool keep_master_weight = false;
  bool pad = false;
  bool reduce_output = true;  ///< false: Y is this rank's addend of the sum
  std::optional<Axis> tensor_model_parallel_group{};
};

/// Y = X W^T + b with W's columns, so X's, cut over the group; b is added once, after the sum.
///
///   X [.., in], or [.., in/tp] with input_is_parallel
///   weight [out, in/tp]   bias [out]   Y [.., out], or [.., t, out] of T with sequence parallel
///
/// Options and errors as ColumnParallelLinear's.
class RowParallelLinear : public Linear, public ParallelLayer {
 public:
  RowParallelLinear(int64_t input_size, int64_t output_size,
                    const RowParallelLinearOptions& options = {});
  using Layer::operator();
  /// The call on plain tensors: this rank's part of X gives this rank's part of Y.
  Tensor operator()(const Tensor& x);
  /// This layer's bias; with skip_bias_add the caller adds its use() to the result.
  [[nodiscard]] const std::shared_ptr<Parameter>& bias() const;
  [[nodiscard]] bool input_is_parallel() const { return options_.input_is_parallel; }

  void allocate(uint64_t seed) override;
  /// For messages: "model.query: ColumnParallelLinear(768, 768)".
  [[nodiscard]] std::string title() const;
  [[nodiscard]] bool is_padded() const { return heads_.padded != nullptr; }
  /// How heads would be cut; nothing changes. Throws Error(kShape) for sizes.
  [[nodiscard]] HeadCuts head_cuts(int64_t n_heads, int64_t n_padded) const;
  /// Cuts so; there is no memory yet. The input has the padded heads' columns, which count nothing.
  void set_head_cuts(const HeadCuts& cuts);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override;

 private:
  RowParallelLinearOptions options_;
  std::shared_ptr<Parameter> skipped_bias_;
  HeadCuts heads_;
};

struct ParallelEmbeddingOptions {
  std::optional<int64_t> padding_idx{};  ///< this row starts as zeros and gets no gradient
  Init init_method = Init::normal(1);
  std::optional<at::Device> device{};
  at::ScalarType dtype = at::kFloat;
  bool shard_across_embedding = false;     ///< cut columns, not rows
  bool sequence_parallel_enabled = false;  ///< output cut along the sequence
  std::optional<int64_t> sequence_dimension{};
  bool collect_output = true;  ///< false: Y is this rank's addend, or its columns
  std::optional<Axis> tensor_model_parallel_group{};
};

/// Rows of a table that is cut over the group by rows (the vocabulary) or columns.
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
  /// The call on plain tensors.
  Tensor operator()(const Tensor& ids);

  void allocate(uint64_t seed) override;

 protected:
  DTensor forward(const DTensor& ids, const Context& context) override;

 private:
  std::optional<int64_t> padding_idx_;
};

/// A layer that is not split, on plain tensors: x and the result are whole on every rank of the
/// tensor-parallel group. Throws Error(kShape) for a layer that is split.
Tensor call(Layer& layer, const Tensor& x, const Context& context = {});

// Mappings over the tensor-parallel group, with the gradients of docs/nxd.md's table. Cuts may be
// uneven; where pieces are joined, the ranks tell each other the sizes of theirs.
/// x as it is; its gradient is summed. Not to be changed in place: it is x's memory.
Tensor copy_to_tensor_model_parallel_region(const Tensor& x);
/// The sum over ranks; its gradient as it is.
Tensor reduce_from_tensor_model_parallel_region(const Tensor& x);
/// This rank's piece of the last dim of x, which is the same on every rank; gradients are joined.
Tensor scatter_to_tensor_model_parallel_region(const Tensor& x);
/// The ranks' pieces joined along the last dim; the gradient is cut.
Tensor gather_from_tensor_model_parallel_region(const Tensor& x);
/// This rank's piece of dim `sequence_dimension`; gradients are joined.
Tensor scatter_to_sequence_parallel_region(const Tensor& x, int64_t sequence_dimension = 1);
/// The ranks' pieces joined. Into split work (`to_model_parallel`) the gradient is summed, then
/// cut; into work that every rank does alike it is cut.
Tensor gather_from_sequence_parallel_region(const Tensor& x, int64_t sequence_dimension = 1,
                                            bool to_model_parallel = true);
/// This rank's piece of the sum over ranks; gradients are joined.
Tensor reduce_scatter_to_sequence_parallel_region(const Tensor& x, int64_t sequence_dimension = 1);

/// Cross entropy per token over logits whose classes are cut; nothing is gathered.
///
///   parallel_logits [.., V/tp], uneven and empty too; not changed
///   labels [..] int64, the same on every rank, in [0, V) or -100: no label, counts 0
///   result [..] fp32 or wider, the same on every rank
///
/// `label_smoothing` in [0, 1] goes to the other classes of the whole vocabulary alone (NeMo's
/// definition); torch's is nn/cross_entropy.h's default. Throws Error(kShape, kUsage).
Tensor parallel_cross_entropy(const Tensor& parallel_logits, const Tensor& labels,
                              double label_smoothing = 0);

/// How many heads of zeros make `n_head` divide by `tp`.
int64_t get_number_of_extra_heads(int64_t n_head, int64_t tp);

/// num_heads_padded / num_heads, exact.
struct HeadRatio {
  int64_t padded = 1;
  int64_t heads = 1;
  /// size * padded / heads. Throws Error(kShape) when that is no whole number.
  [[nodiscard]] int64_t of(int64_t size) const;
};

/// Tests of a layer's class; classes<A, B>() makes them.
using LayerClasses = std::vector<bool (*)(const Layer&)>;

/// Layers of these classes or derived from them.
template <class... T>
LayerClasses classes() {
  return {[](const Layer& layer) { return dynamic_cast<const T*>(&layer) != nullptr; }...};
}

struct PadModelOptions {
  LayerClasses wrapped_classes{};  ///< what is padded, with all below it; none: the whole model
  /// ConfigFingerprint each padded instance (of a wrapped class, or every layer) before its linears change.
  std::function<void(Layer&, const HeadRatio&)> pad_hook_fn{};
};

/// Makes a model of `n_heads` heads run on `tp_degree` ranks that do not divide them: columns and
/// rows are cut in whole heads, and behind them activations have heads of zeros, the same number
/// of heads on every rank. Results, gradients and checkpoints stay those of the unpadded model.
///
/// Before move_model_to_device; the model computes with divide(n_heads +
/// get_number_of_extra_heads(n_heads, tp), tp) heads a rank. Throws Error(kShape) for a layer that
/// must not be padded (a vocabulary projection) or does not consist of n_heads, Error(kUsage) when
/// called from its own hook, twice, or for another degree; the model is unchanged then.
void pad_model(Layer& model, int64_t tp_degree, int64_t n_heads,
               const PadModelOptions& options = {});

/// Puts a model on `device`: names its parameters, gives those without memory their starting
/// values, moves the rest. What they are cut over and tied to is theirs, so nothing is lost.
/// `options.dtype` is that of layers that were not given one. Called on the whole model, before an
/// optimizer is made. Throws Error(kUsage) when a layer asked for another device.
void move_model_to_device(Layer& model, at::Device device, const MaterializeOptions& options = {});

/// What clip_grad_norm does for a list.
double clip_grad_norm_of(const Parameters& parameters, double max_norm, double norm_type);

/// Completes the gradients, then clips them: sums over the tensor-parallel group what is in parts,
/// takes the mean over the data-parallel group, and multiplies by max_norm / (norm + 1e-6) where
/// that is below 1. `parameters` is any range of them. Returns the global norm, every element
/// counted once, the same on every rank; `norm_type` is its power, or infinity.
///
/// What is complete already is not reduced again: optimizer_step after it, FSDP over the
/// data-parallel group (the mean is taken), a Zero1Optimizer over it after reduce_gradients(), and
/// NxDPPModel::run_train, whose norm is that of all stages. Throws Error(kNumerics) naming the
/// first parameter whose gradient is not finite, Error(kUsage) when backward ran after the
/// gradients were complete, before ZeRO-1 reduced them, or where the groups have several stages and
/// no pipeline made the gradients. cleave::clip_grad_norm, which completes nothing, has another
/// result: name the namespace.
template <std::ranges::input_range Range>
double clip_grad_norm(Range&& parameters, double max_norm, double norm_type = 2) {
  Parameters list;
  for (auto&& p : parameters) list.push_back(p);
  return clip_grad_norm_of(list, max_norm, norm_type);
}

/// Takes the mean of the gradients over `groups`, where clip_grad_norm did not do so already, and
/// updates. `groups` is get_data_parallel_group(as_list); Error(kUsage) for any other.
void optimizer_step(Optimizer& optimizer, const std::vector<std::vector<int>>& groups, double lr);
/// Over all ranks. Throws Error(kUsage) where these hold parts of a model, not copies.
void optimizer_step(Optimizer& optimizer, double lr);

}  // namespace cleave::nxd
