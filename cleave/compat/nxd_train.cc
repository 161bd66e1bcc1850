#include <map>

#include <ATen/ATen.h>

#include "cleave/compat/nxd.h"
#include "cleave/nn/move.h"
#include "cleave/parallel/gradients.h"

namespace cleave::nxd {
namespace {

/// A gradient that is complete: reduced over both groups. Holding it keeps another from taking its
/// place in memory; what backward adds to it later shows in its version.
struct Complete {
  Tensor gradient;
  uint32_t version = 0;
};
thread_local std::map<const Parameter*, Complete> complete;  // a rank may be a thread

uint32_t version_of(const Tensor& t) {
  return t.unsafeGetTensorImpl()->version_counter().current_version();
}

/// Those whose gradients are not complete yet. Throws when backward ran over complete ones.
Parameters incomplete(const Parameters& parameters) {
  Parameters out;
  for (const auto& p : parameters) {
    if (p->home() == Parameter::Home::kElsewhere) continue;
    const auto known = complete.find(p.get());
    const Tensor& gradient = p->leaf().grad();
    if (known == complete.end() || !known->second.gradient.is_same(gradient)) {
      out.push_back(p);
      continue;
    }
    CLEAVE_CHECK(
        known->second.version == version_of(gradient), Code::kUsage, p->name(),
        ": the gradient changed after clip_grad_norm had completed it over the ranks; call "
        "that once a step, after the last backward");
  }
  return out;
}

void note_complete(const Parameters& parameters) {
  for (const auto& p : parameters) {
    if (p->home() == Parameter::Home::kElsewhere) continue;
    const Tensor& gradient = p->leaf().grad();
    complete[p.get()] = {.gradient = gradient, .version = version_of(gradient)};
  }
}

void complete_gradients(const Parameters& parameters) {
  const Axis& tp = get_tensor_model_parallel_group();
  const Axis& dp = get_data_parallel_group();
  for (const auto& p : parameters) {
    if (p->home() == Parameter::Home::kElsewhere) continue;
    CLEAVE_CHECK(p->leaf().defined() && p->axis().size() == tp.size(), Code::kUsage, p->name(),
                 " is not on the tensor-parallel group; call move_model_to_device(model, device) "
                 "before the optimizer is made");
  }
  const Parameters rest = incomplete(parameters);
  finish_gradients(rest, tp);
  sum_gradients(rest, dp);
  if (dp.size() > 1) {
    const at::NoGradGuard no_grad;
    for (const auto& p : rest) p->leaf().mutable_grad().div_(dp.size());
  }
  note_complete(rest);
}

void step(Optimizer& optimizer, double lr) {
  Parameters parameters;
  for (const Optimizer::State& state : optimizer.states()) parameters.push_back(state.parameter);
  complete_gradients(parameters);
  optimizer.step(lr);
  for (const auto& p : parameters) complete.erase(p.get());
}

}  // namespace

void move_model_to_device(Layer& model, at::Device device, const MaterializeOptions& options) {
  const Axis& tp = get_tensor_model_parallel_group();
  model.name_tree();
  for (const auto& p : model.parameters()) {
    if (p->axis() == Axis()) p->replicate(tp);
  }
  model.walk([&](Layer& layer) {
    auto* parallel = dynamic_cast<ParallelLayer*>(&layer);
    if (parallel == nullptr) return;
    CLEAVE_CHECK(!parallel->device() || *parallel->device() == device, Code::kUsage, layer.path(),
                 " was made for device ", parallel->device()->str(), "; the model is moved to ",
                 device.str());
    parallel->allocate(options.seed);
  });
  materialize(model, options);
  move_to(model, device);
}

double clip_grad_norm_of(const Parameters& parameters, double max_norm, double norm_type) {
  complete_gradients(parameters);
  const GradientNorm norm = cleave::clip_grad_norm_of(parameters, max_norm, norm_type, true);
  note_complete(parameters);
  return norm.value;
}

void optimizer_step(Optimizer& optimizer, const std::vector<std::vector<int>>& groups, double lr) {
  CLEAVE_CHECK(groups == get_data_parallel_group(as_list), Code::kUsage,
               "groups are not the data-parallel ones: their ranks hold parts of a model, not "
               "copies; pass get_data_parallel_group(as_list)");
  step(optimizer, lr);
}

void optimizer_step(Optimizer& optimizer, double lr) {
  CLEAVE_CHECK(get_data_parallel_group(as_list).size() == 1, Code::kUsage,
               "without groups gradients would be averaged over all ranks, which hold ",
               get_data_parallel_group(as_list).size(),
               " different parts of the model; pass get_data_parallel_group(as_list)");
  step(optimizer, lr);
}

}  // namespace cleave::nxd
