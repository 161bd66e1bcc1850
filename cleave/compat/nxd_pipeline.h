#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/parallel/gradient_sync.h"
#include "cleave/pipeline/pipeline_model.h"

namespace cleave::nxd {

/// A model's inputs by name; dim 0 is the sequences of the batch. One of them goes to the first
/// layer (NxDPPModelOptions::first_input), "attention_mask", "token_type_ids" and "position_ids" to
/// the layers' Context; the loss function gets all of them.
using PipelineInputs = std::map<std::string, Tensor>;

/// Scalar loss of a micro-batch from the last layer's output and the micro-batch's inputs. In NxD
/// the module returns its loss among other values and output_loss_value_spec points at it; here the
/// loss is a function outside the model.
using OutputLoss = std::function<Tensor(const DTensor& output, const PipelineInputs& inputs)>;

/// NxDPPModel's arguments under their names. Arguments for Python tracing (tracer_cls,
/// leaf_module_cls, autowrap_*) do not apply to a list of layers.
struct NxDPPModelOptions {
  bool (*transformer_layer_cls)(const Layer&) = nullptr;  ///< classes<Block>()[0]
  int num_microbatches = 1;
  int virtual_pipeline_size = 1;        ///< above 1: the interleaved schedule
  OutputLoss output_loss_value_spec{};  ///< without it only run_eval_outputs works
  bool return_mb_loss = false;
  bool broadcast_and_average_loss = false;
  /// Weights micro-batches by their labels, over all data-parallel ranks: the loss of the global
  /// batch. A micro-batch without labels adds nothing. Otherwise the loss is a mean of means, as in
  /// NxD, and NaN for a micro-batch without labels.
  bool token_weighted_loss = false;
  /// The number of labels over which the loss of a micro-batch is a mean. Without this function,
  /// the labels of the input "labels" that are not -100 are counted; a loss that shifts labels has
  /// fewer.
  std::function<int64_t(const PipelineInputs&)> count_labels{};
  std::vector<std::string> pipeline_cuts{};  ///< last layer of each stage except the last stage
  std::vector<std::string> input_names{};
  std::string first_input = "input_ids";  ///< input of the first layer, of any dtype
  /// Fills a micro-batch's Context from other inputs, after the three above. The Context already
  /// has what dropout needs: `seed` of these options, the step, the first sample.
  std::function<void(Context&, const PipelineInputs&)> set_context{};
  /// Initializes the parameters of one layer, without its children, on a device: the CPU, as in
  /// NxD. All other parameters get their initial value, a function of `seed`, name and position, in
  /// the parallel layer's own dtype, elsewhere in `dtype`.
  std::function<void(Layer&, at::Device)> param_init_fn{};
  uint64_t seed = 0;  ///< of initial values and of dropout
  at::ScalarType dtype = at::kFloat;
  std::string trace_file_path{};  ///< Chrome trace of the first training step
  bool use_zero1_optimizer = false;
  bool auto_partition = false;               ///< L / P blocks per stage, the rest to the last ones
  bool balance_by_cost = false;              ///< auto_partition: balance the layers' costs instead
  bool deallocate_pipeline_outputs = false;  ///< has no effect: outputs are always freed
};

/// Base of model parts that compute on plain tensors with the layers of nxd.h and that NxDPPModel
/// can call. Register child layers with add(), as in a LayerGroup.
class PlainLayer : public Layer {
 public:
  using Layer::add;
  using Layer::operator();
  /// Call on plain tensors: x and the result are replicated over the tensor-parallel group.
  Tensor operator()(const Tensor& x, const Context& context = {});

 protected:
  /// The layer's computation.
  virtual Tensor compute(const Tensor& x, const Context& context) = 0;
  DTensor forward(const DTensor& x, const Context& context) final;
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override;
};

/// A model over the pipeline, data and tensor-parallel groups that initialize_model_parallel made,
/// with the calls of NxD's guide. Apply a plan (parallelize_module) before; the parallel layers of
/// nxd.h need none. Apply FSDP before too, to each layer of `sequence`.
class NxDPPModel {
 public:
  /// `module` must outlive this; `sequence` is its layers in call order. Partitions immediately if
  /// cuts or auto_partition are given, otherwise at partition().
  ///
  /// Throws Error(kUsage) if groups are not initialized, transformer_layer_cls is missing,
  /// auto_partition comes with cuts, cuts come without input_names, both loss options are on, or a
  /// layer of `sequence` is a LayerGroup, which has no call (derive it from PlainLayer);
  /// Error(kShape) if cuts or blocks do not match the number of stages.
  NxDPPModel(Layer& module, std::vector<Layer*> sequence, NxDPPModelOptions options);
  ~NxDPPModel();
  NxDPPModel(const NxDPPModel&) = delete;
  NxDPPModel& operator=(const NxDPPModel&) = delete;

  /// Manual partition: call with the last layer of each stage except the last, then partition().
  void cut_pipeline_stage(const std::string& name);
  /// Partitions the model into stages and allocates this rank's layers.
  void partition();

  /// Forward and backward of the batch. Afterwards gradients are complete (means over data-parallel
  /// ranks, sums for tied weights), or in the optimizer's shards with use_zero1_optimizer. Every
  /// input is split along dim 0 into num_microbatches near-equal parts. Returns, by the options:
  /// the loss on the last pipeline rank and nothing elsewhere, one loss per micro-batch there, or
  /// the mean over data-parallel ranks on every rank. Throws Error(kUsage) for names other than
  /// input_names and if gradients of an earlier step remain (call zero_grad() after each step),
  /// Error(kShape) for inconsistent sizes. Collective.
  std::vector<double> run_train(const PipelineInputs& inputs);
  /// The number of training steps so far, which dropout depends on. A run that continues from a
  /// checkpoint sets the checkpoint's.
  [[nodiscard]] int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t steps) { num_steps_ = steps; }
  /// Forward only, with a loss; returns like run_train. The batch size may differ, also between
  /// data-parallel ranks; a batch with fewer sequences than num_microbatches has one micro-batch
  /// per sequence (with FSDP, as many as the rank with the fewest). Collective over the pipeline,
  /// and over data-parallel ranks if run_train's options make them exchange weights or losses.
  std::vector<double> run_eval(const PipelineInputs& inputs);
  /// Forward only: the last layer's outputs by micro-batch on the last rank, nothing elsewhere.
  std::vector<DTensor> run_eval_outputs(const PipelineInputs& inputs);

  /// The parameters of this rank's stages, with the names of the whole model. All of these throw
  /// Error(kUsage) before the model is partitioned.
  [[nodiscard]] Parameters local_parameters() const;
  [[nodiscard]] std::vector<std::pair<std::string, std::shared_ptr<Parameter>>>
  local_named_parameters() const;
  [[nodiscard]] std::vector<std::pair<std::string, Layer*>> local_named_modules() const;
  /// This rank's shards of the parameters, detached, not copied.
  [[nodiscard]] std::map<std::string, Tensor> local_state_dict() const;
  /// Copies the values in. Throws Error(kFormat) for a missing or unknown name.
  void load_state_dict(const std::map<std::string, Tensor>& state);

 private:
  struct Work;
  void check_options() const;
  [[nodiscard]] Stages stages() const;
  void allocate();
  [[nodiscard]] const PipelineModel& partitioned() const;
  [[nodiscard]] int64_t count_of(int64_t rows, bool training) const;
  [[nodiscard]] Work work_of(const PipelineInputs& inputs, bool training) const;
  [[nodiscard]] std::vector<double> weights_of(const Work& work) const;
  [[nodiscard]] std::vector<double> reported(const std::vector<double>& losses,
                                             const std::vector<double>& weights) const;
  void write_trace();

  Layer& module_;
  std::vector<Layer*> sequence_;
  NxDPPModelOptions options_;
  Axis pp_, dp_, tp_;
  std::vector<std::string> cuts_;
  std::unique_ptr<PipelineModel> pipeline_;
  std::shared_ptr<GradientSync> gradients_;
  int64_t num_steps_ = 0;
  bool has_traced_ = false;
};

}  // namespace cleave::nxd
