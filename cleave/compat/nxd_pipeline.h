#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/parallel/data_parallel.h"
#include "cleave/pipeline/pipeline_model.h"

namespace cleave::nxd {

/// Tensors by the names of a model's inputs, dim 0 the sequences of the batch. One of them goes to
/// the first layer (NxDPPModelOptions::first_input), "attention_mask", "token_type_ids" and
/// "position_ids" to the layers' Context; the loss gets all of them.
using PipelineInputs = std::map<std::string, Tensor>;

/// One number from what the last layer gives for a micro-batch and the micro-batch's inputs. A
/// module of the original returns its loss among other values and output_loss_value_spec points at
/// it; here the loss is a function beside the model.
using OutputLoss = std::function<Tensor(const DTensor& output, const PipelineInputs& inputs)>;

/// NxDPPModel's arguments under their names. What its Python tracing needs (tracer_cls,
/// leaf_module_cls, autowrap_*) has no meaning for a list of layers.
struct NxDPPModelOptions {
  bool (*transformer_layer_cls)(const Layer&) = nullptr;  ///< classes<Block>()[0]
  int num_microbatches = 1;
  int virtual_pipeline_size = 1;        ///< above 1: the interleaved schedule
  OutputLoss output_loss_value_spec{};  ///< none: run_eval gives the outputs
  bool return_mb_loss = false;
  bool broadcast_and_average_loss = false;
  /// Micro-batches count by their labels that are not -100, over all data-parallel ranks: the loss
  /// of the global batch. Without it a mean of means, as the original's.
  bool token_weighted_loss = false;
  std::vector<std::string> pipeline_cuts{};  ///< the last layer of each stage but the last
  std::vector<std::string> input_names{};
  std::string first_input = "input_ids";  ///< what the first layer takes, of any type
  /// Fills a micro-batch's Context from inputs of other names, after the three above.
  std::function<void(Context&, const PipelineInputs&)> set_context{};
  /// Fills the parameters of one layer, not of those below it, on a device: the processor, as in
  /// the original. What it leaves out, and all without it, gets its starting value: a function of
  /// `seed`, name and place, of the parallel layer's own dtype, elsewhere of `dtype`.
  std::function<void(Layer&, at::Device)> param_init_fn{};
  uint64_t seed = 0;
  at::ScalarType dtype = at::kFloat;
  std::string trace_file_path{};  ///< a Chrome trace of the first step that is trained
  bool use_zero1_optimizer = false;
  bool auto_partition = false;               ///< L / P blocks a stage, the rest to the last ones
  bool balance_by_cost = false;              ///< auto_partition: by what layers cost instead
  bool deallocate_pipeline_outputs = false;  ///< taken for the name: outputs are always freed
};

/// A part of a model that computes on plain tensors, made of the layers of nxd.h, and that
/// NxDPPModel can call. It registers its parts with add(), as a LayerGroup does.
class PlainLayer : public Layer {
 public:
  using Layer::add;
  using Layer::operator();
  /// The call on plain tensors: x and the result are whole on every rank of the tensor-parallel
  /// group.
  Tensor operator()(const Tensor& x, const Context& context = {});

 protected:
  /// What the layer computes.
  virtual Tensor compute(const Tensor& x, const Context& context) = 0;
  DTensor forward(const DTensor& x, const Context& context) final;
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override;
};

/// A model over the pipeline, data and tensor-parallel groups that initialize_model_parallel made,
/// under the calls of NxD's guide. A plan is put on the model before (parallelize_module); parallel
/// layers of nxd.h need nothing. So is FSDP, on each layer of `sequence`.
class NxDPPModel {
 public:
  /// `module` outlives this; `sequence` is its layers in the order of their calls. Partitions at
  /// once where cuts or auto_partition are given, else at partition().
  ///
  /// Throws Error(kUsage) where groups are not initialized, transformer_layer_cls is missing,
  /// auto_partition comes with cuts, cuts come without input_names, both loss options are on, or a
  /// layer of `sequence` is a LayerGroup, which has no call (derive it from PlainLayer);
  /// Error(kShape) for cuts or blocks that do not make the stages.
  NxDPPModel(Layer& module, std::vector<Layer*> sequence, NxDPPModelOptions options);
  ~NxDPPModel();
  NxDPPModel(const NxDPPModel&) = delete;
  NxDPPModel& operator=(const NxDPPModel&) = delete;

  /// By hand: the names of stages' last layers, one by one, then partition().
  void cut_pipeline_stage(const std::string& name);
  /// Cuts the model into stages and gives this rank's layers memory.
  void partition();

  /// Forward and backward of the batch; gradients are complete then (means over data-parallel
  /// ranks; sums of tied weights), or in the optimizer's shards with use_zero1_optimizer. Every
  /// input is split along dim 0 into num_microbatches near-equal parts. Returns, as the options
  /// say: the loss on the last pipeline rank and nothing elsewhere, one loss a micro-batch there,
  /// or the mean over data-parallel ranks on every rank. Throws Error(kUsage) for names other than
  /// input_names and where gradients of an earlier step are left (call zero_grad() after each
  /// step), Error(kShape) for sizes that do not go together. Collective.
  std::vector<double> run_train(const PipelineInputs& inputs);
  /// Forward alone, with a loss; returns as run_train does. Another batch size is fine; fewer rows
  /// than num_microbatches are as many micro-batches.
  std::vector<double> run_eval(const PipelineInputs& inputs);
  /// Forward alone: the last layer's outputs by micro-batch on the last rank, nothing elsewhere.
  std::vector<DTensor> run_eval_outputs(const PipelineInputs& inputs);

  /// Of this rank's stages, under the names of the whole model. All throw Error(kUsage) before the
  /// model is partitioned.
  [[nodiscard]] Parameters local_parameters() const;
  [[nodiscard]] std::vector<std::pair<std::string, std::shared_ptr<Parameter>>>
  local_named_parameters() const;
  [[nodiscard]] std::vector<std::pair<std::string, Layer*>> local_named_modules() const;
  /// This rank's parts of the parameters, detached: no copies.
  [[nodiscard]] std::map<std::string, Tensor> local_state_dict() const;
  /// Copies values in. Strict: Error(kFormat) for a name that is missing or not here.
  void load_state_dict(const std::map<std::string, Tensor>& state);

 private:
  struct Work;
  void check_options() const;
  [[nodiscard]] Stages stages() const;
  void give_memory();
  [[nodiscard]] Parameters tied_of(const Parameters& own) const;
  void sync_gradients();
  [[nodiscard]] const PipelineModel& partitioned() const;
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
  std::vector<std::shared_ptr<DataParallel>> data_parallel_;  // by type; none with FSDP
  uint64_t num_steps_ = 0;
};

}  // namespace cleave::nxd
