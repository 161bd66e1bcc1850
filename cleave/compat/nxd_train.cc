#include <ATen/ATen.h>

#include "cleave/compat/internal/nxd.h"
#include "cleave/compat/nxd.h"
#include "cleave/nn/gradient_state.h"
#include "cleave/nn/layer.h"
#include "cleave/parallel/gradients.h"

namespace cleave::nxd {
namespace {

// The norm of one stage's gradients, or a step with it, would be silently wrong.
void check_stages(const Parameter& p) {
  const Axis& pp = get_pipeline_model_parallel_group();
  CLEAVE_CHECK(pp.size() == 1 || has_same_ranks(stages_of(p), pp), Code::kUsage, p.name(),
               ": the gradient is not summed over the ", pp.size(),
               " pipeline stages; train with NxDPPModel::run_train");
}

void complete_gradients(const Parameters& parameters) {
  const Axis& tp = get_tensor_model_parallel_group();
  for (const auto& p : parameters) {
    if (p->ownership() == Parameter::Ownership::kNotOwned) continue;
    const bool is_on_tp =
        p->axis().size() == tp.size() && (tp.size() == 1 || has_same_ranks(p->axis(), tp));
    CLEAVE_CHECK(p->leaf().defined() && is_on_tp, Code::kUsage, p->name(),
                 " is not on the tensor-parallel group; call move_model_to_device(model, device) "
                 "before the optimizer is made");
    check_stages(*p);
  }
  average_gradients(parameters, tp, get_data_parallel_group());
}

void step(Optimizer& optimizer, double lr) {
  Parameters parameters;
  for (const Optimizer::State& state : optimizer.states()) parameters.push_back(state.parameter);
  complete_gradients(parameters);
  optimizer.step(lr);
}

}  // namespace

void put_on_group(Layer& model) {
  const Axis& tp = get_tensor_model_parallel_group();
  model.name_tree();
  for (const auto& p : model.parameters()) {
    if (p->axis() == Axis()) p->replicate(tp);
  }
}

void allocate_parallel_layers(Layer& model, at::Device device, uint64_t seed) {
  model.walk([&](Layer& layer) {
    auto* parallel = dynamic_cast<ParallelLayer*>(&layer);
    if (parallel == nullptr) return;
    CLEAVE_CHECK(!parallel->device() || *parallel->device() == device, Code::kUsage, layer.path(),
                 " was made for device ", parallel->device()->str(), "; the model is moved to ",
                 device.str());
    parallel->allocate(seed);
  });
}

void move_model_to_device(Layer& model, at::Device device, const MaterializeOptions& options) {
  put_on_group(model);
  allocate_parallel_layers(model, device, options.seed);
  materialize(model, options);
  move_to(model, device);
}

double clip_grad_norm_of(const Parameters& parameters, double max_norm, double norm_type) {
  complete_gradients(parameters);
  return cleave::clip_grad_norm_of(parameters, max_norm, norm_type, true).value;
}

void optimizer_step(Optimizer& optimizer, const std::vector<std::vector<int>>& groups, double lr) {
  CLEAVE_CHECK(groups == get_data_parallel_group(as_list), Code::kUsage,
               "groups are not the data-parallel groups: their ranks hold different shards, not "
               "copies; pass get_data_parallel_group(as_list)");
  step(optimizer, lr);
}

void optimizer_step(Optimizer& optimizer, double lr) {
  CLEAVE_CHECK(get_data_parallel_group(as_list).size() == 1, Code::kUsage,
               "without groups gradients would be averaged over all ranks, which hold ",
               get_data_parallel_group(as_list).size(),
               " different shards of the model; pass get_data_parallel_group(as_list)");
  step(optimizer, lr);
}

}  // namespace cleave::nxd
