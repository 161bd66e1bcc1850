#include "cleave/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include "cleave/base/suggest.h"
#include "cleave/kernels/device.h"
#include "cleave/nn/gradient_state.h"
#include "cleave/optim/muon.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/runtime/step_recorder.h"

namespace cleave::inline optim {

using Kind = OptimizerOptions::Kind;

Kind OptimizerOptions::kind_from_name(const std::string& name) {
  if (name == "adamw") return Kind::kAdamW;
  if (name == "adam") return Kind::kAdam;
  if (name == "sgd") return Kind::kSgd;
  if (name == "muon") return Kind::kMuon;
  throw Error(Code::kUsage,
              str("optimizer '", name, "' is unknown; expected adamw, adam, sgd or muon"));
}

OptimizerOptions::DecayOn OptimizerOptions::decay_from_name(const std::string& name) {
  if (name == "matrices") return DecayOn::kMatrices;
  if (name == "all") return DecayOn::kAll;
  throw Error(Code::kUsage, str("decay-on '", name, "' is unknown; expected matrices or all"));
}

namespace {

/// Refuses settings for names that no parameter has: the parameter that was meant would silently
/// get the common ones.
void check_names(const OptimizerOptions& options, const Parameters& parameters,
                 const Parameters& model) {
  std::set<std::string> given = options.matrices;
  for (const auto& [name, own] : options.own) given.insert(name);
  if (given.empty()) return;
  std::set<std::string> known;
  for (const Parameters* list : {&parameters, &model}) {
    for (const auto& p : *list) {
      CLEAVE_CHECK(!p->name().empty(), Code::kUsage,
                   "settings of single parameters need their names, and a parameter has no name "
                   "yet; call the model's name_tree() before you make the optimizer");
      known.insert(p->name());
    }
  }
  for (const std::string& name : given) {
    CLEAVE_CHECK(known.contains(name), Code::kUsage, "the optimizer's options have '", name,
                 "', which is no parameter of the model",
                 did_you_mean(name, std::vector<std::string>(known.begin(), known.end())),
                 model.empty() ? "; an optimizer of one pipeline stage also needs the parameters "
                                 "of the model"
                               : "");
  }
}

}  // namespace

Optimizer::Optimizer(const Parameters& parameters, const OptimizerOptions& options,
                     const Parameters& model)
    : options_(options) {
  const bool is_muon = options.kind == Kind::kMuon;
  CLEAVE_CHECK(is_muon != options.matrices.empty(), Code::kUsage,
               is_muon
                   ? "Muon updates the matrices of the model's blocks, and this model has none; "
                     "choose adamw"
                   : "only Muon takes a list of matrices; leave it out, or choose muon");
  check_names(options, parameters, model);
  for (const auto& p : trained_of(parameters)) {
    const bool decays =
        options.decay_on == OptimizerOptions::DecayOn::kAll || p->shape().size() >= 2;
    const auto found = options.own.find(p->name());
    const OptimizerOptions::Own own =
        found == options.own.end() ? OptimizerOptions::Own() : found->second;
    const double decay = own.weight_decay.value_or(decays ? options.weight_decay : 0);
    if (options.matrices.contains(p->name())) {
      CLEAVE_CHECK(p->shape().size() == 2, Code::kUsage, p->name(), " has ", p->shape().size(),
                   " dims; Muon updates matrices");
      matrices_.push_back(
          {.state = states_.size(), .lr_factor = own.lr_factor, .weight_decay = decay});
    } else {
      groups_[{own.lr_factor, decay}].push_back(states_.size());
    }
    states_.push_back({.parameter = p, .exp_avg = {}, .exp_avg_sq = {}, .ema = {}});
  }
  (void)states();  // allocates moments: too little memory fails here, not after the first backward
}

const std::vector<Optimizer::State>& Optimizer::states() const {
  const at::NoGradGuard no_grad;
  for (State& s : states_) {
    const Tensor& leaf = s.parameter->leaf();
    if (!leaf.defined()) continue;
    const auto provide = [&](Tensor& state, bool is_needed) {
      if (is_needed && !state.defined()) state = at::zeros_like(leaf.detach());
      // The model was sharded after the optimizer was made: keep this rank's part of the state.
      const bool is_whole =
          state.defined() && state.sizes() == at::IntArrayRef(s.parameter->shape());
      if (is_whole && state.sizes() != leaf.sizes()) state = s.parameter->part_of(state);
    };
    provide(s.exp_avg, has_moments());
    provide(s.exp_avg_sq, has_second_moment(*s.parameter));
    const bool is_new = !s.ema.defined();
    provide(s.ema, has_ema());
    if (is_new && has_ema()) s.ema.copy_(leaf.detach());  // until the first step
  }
  return states_;
}

namespace {

/// Whether a step changes this rank's part: it has some, and the leaf requires grad.
bool is_stepped(const Optimizer::State& state) {
  return state.parameter->leaf().numel() > 0 && state.parameter->is_trained();
}

/// The copy that forward reads in place of a leaf of the same sizes; undefined if there is none.
Tensor compute_copy(const Parameter& p) {
  const Tensor other = p.other_use();
  return other.defined() && other.sizes() == p.leaf().sizes() ? other.detach() : Tensor();
}

/// Writes the values of leaves to the copies that forward reads.
void refresh_copies(const std::vector<const Optimizer::State*>& states) {
  for (const Optimizer::State* s : states) {
    const Tensor read = compute_copy(*s->parameter);
    if (read.defined()) read.copy_(s->parameter->leaf());
  }
}

bool is_of(const Tensor& t, at::ScalarType type) {
  return t.scalar_type() == type && t.is_contiguous();
}

/// What Cleave's kernels for Adam read and write.
struct FusedTensors {
  Tensor leaf, gradient, exp_avg, exp_avg_sq;
  Tensor read;  // the bf16 copy that forward reads, or undefined
};

/// Empty if the kernels do not support the state.
std::optional<FusedTensors> fused_tensors(const Optimizer::State& state) {
  const FusedTensors t{.leaf = state.parameter->leaf().detach(),
                       .gradient = state.parameter->leaf().grad().contiguous(),
                       .exp_avg = state.exp_avg,
                       .exp_avg_sq = state.exp_avg_sq,
                       .read = compute_copy(*state.parameter)};
  const at::ScalarType type = t.gradient.scalar_type();
  if (!is_on(Kernel::kAdam) || !t.exp_avg.defined() || !is_of(t.leaf, at::kFloat) ||
      !(type == at::kBFloat16 || type == at::kFloat) || !is_of(t.exp_avg, at::kFloat) ||
      !is_of(t.exp_avg_sq, at::kFloat) || (t.read.defined() && !is_of(t.read, at::kBFloat16))) {
    return std::nullopt;
  }
  return t;
}

/// Kernels write without libtorch's knowledge. With the new version, a backward that would read the
/// weights as they were before the step is refused, as after a step by libtorch.
void note_written(const FusedTensors& t) {
  for (const Tensor* written : {&t.leaf, &t.read}) {
    if (written->defined()) written->unsafeGetTensorImpl()->bump_version();
  }
}

/// Null for an undefined tensor.
uint16_t* bf16_data(const Tensor& t) {
  return t.defined() ? static_cast<uint16_t*>(t.mutable_data_ptr()) : nullptr;
}

/// `update` is an Optimizer::Update.
template <class Update>
AdamRule rule_of(const OptimizerOptions& options, const Update& update, int64_t step) {
  return {.is_decoupled = options.kind != Kind::kAdam,
          .lr = update.lr,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = update.weight_decay,
          .gradient_scale = update.gradient_scale,
          .step = step};
}

void step_on_device(const std::vector<FusedTensors>& tensors, const AdamRule& rule) {
  if (tensors.empty()) return;
  std::vector<AdamTensor> list(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const FusedTensors& t = tensors[i];
    AdamTensor& on_device = list[i];
    on_device.weight = t.leaf.mutable_data_ptr<float>();
    on_device.gradient = t.gradient.const_data_ptr();
    on_device.exp_avg = t.exp_avg.mutable_data_ptr<float>();
    on_device.exp_avg_sq = t.exp_avg_sq.mutable_data_ptr<float>();
    on_device.bf16_weight = bf16_data(t.read);
    on_device.count = t.leaf.numel();
    on_device.is_bf16_gradient = t.gradient.scalar_type() == at::kBFloat16;
  }
  const Tensor& leaf = tensors[0].leaf;
  const Tensor scale = at::full({1}, rule.gradient_scale, leaf.options());
  device_kernels(leaf)->adam(list, rule, scale.const_data_ptr<float>());
  for (const FusedTensors& t : tensors) note_written(t);
}

// Most bytes of leaves that libtorch steps together, but for the last one.
constexpr int64_t kStepBytes = int64_t{256} << 20;
// The least elements for a thread.
constexpr int64_t kGrain = 32768;

}  // namespace

void Optimizer::step(double lr, double gradient_scale) {
  const RecordedScope recorded(EventKind::kOptimizer, "optimizer step");
  const at::NoGradGuard no_grad;
  for (const State& s : states()) {
    if (!is_stepped(s)) continue;
    check_complete(*s.parameter);
    CLEAVE_CHECK(s.parameter->leaf().grad().defined(), Code::kUsage, s.parameter->name(),
                 " has no gradient; call backward, then finish_gradients(), which gives zeros to "
                 "parameters that the loss does not use");
  }
  ++num_steps_;
  // Also of a weight of which this rank holds nothing: all ranks save the same number.
  for (State& s : states_) s.num_steps += s.parameter->is_trained() ? 1 : 0;
  for (const auto& [settings, members] : groups_) {
    const auto [lr_factor, weight_decay] = settings;
    step_group(members, {lr * lr_factor, gradient_scale, weight_decay});
  }
  if (!matrices_.empty()) step_matrices(lr, gradient_scale);
  for (const State& s : states_) {
    if (is_stepped(s) && compute_copy(*s.parameter).defined()) s.parameter->note_copied();
  }
  if (has_ema()) update_ema();
}

void Optimizer::step_matrices(double lr, double gradient_scale) {
  constexpr double kUpdateSize = 0.2;  // root mean square of AdamW's updates
  Parameters parameters;
  std::vector<Matrix> held;  // other pipeline stages hold the rest
  for (const Matrix& m : matrices_) {
    const Parameter& p = *states_[m.state].parameter;
    if (!p.leaf().defined() || !p.is_trained()) continue;
    held.push_back(m);
    parameters.push_back(states_[m.state].parameter);
  }
  const auto update = [&](size_t i) {
    const State& s = states_[held[i].state];
    Tensor leaf = s.parameter->leaf().detach();
    if (leaf.numel() == 0) return leaf;  // this rank holds nothing of it
    Tensor gradient = s.parameter->leaf().grad().to(leaf.scalar_type());
    if (gradient_scale != 1) gradient = gradient * gradient_scale;
    s.exp_avg.lerp_(gradient, 1 - options_.momentum);
    return gradient.lerp(s.exp_avg, options_.momentum);  // Nesterov's
  };
  const auto apply = [&](size_t i, const Tensor& orthogonal) {
    const Matrix& m = held[i];
    const Parameter& p = *states_[m.state].parameter;
    const auto longest = static_cast<double>(std::max(p.shape()[0], p.shape()[1]));
    const double rate = lr * m.lr_factor;
    const Tensor leaf = p.leaf().detach();
    leaf.mul_(1 - rate * m.weight_decay);
    leaf.add_(orthogonal, -rate * kUpdateSize * std::sqrt(longest));
    const Tensor read = compute_copy(p);
    if (read.defined()) read.copy_(leaf);
  };
  for_whole_matrices(parameters, update, orthogonalized, apply);
}

void Optimizer::update_ema() {
  for (const State& s : states_) {
    if (!s.ema.defined()) continue;  // another pipeline stage holds it
    const Tensor leaf = s.parameter->leaf().detach();
    if (num_steps_ == 1) {
      s.ema.copy_(leaf);
    } else {
      s.ema.lerp_(leaf, 1 - *options_.ema);
    }
  }
}

void Optimizer::swap_ema() {
  const at::NoGradGuard no_grad;
  for (const State& s : states()) {
    if (!s.ema.defined()) continue;
    const Tensor leaf = s.parameter->leaf().detach();
    const Tensor weight = leaf.clone();
    leaf.copy_(s.ema);
    s.ema.copy_(weight);
  }
}

int64_t Optimizer::step_bytes() const {
  int64_t most = 0;
  for (const Matrix& m : matrices_) {
    const Parameter& p = *states_[m.state].parameter;
    if (!p.leaf().defined()) continue;
    const int64_t shorter = std::min(p.shape()[0], p.shape()[1]);
    // The update, what this rank sends of it, the matrix before and after an iteration; two
    // products.
    const int64_t elements = 4 * p.numel() + 2 * shorter * shorter;
    most = std::max(most, elements * static_cast<int64_t>(p.leaf().element_size()));
  }
  return most;
}

void Optimizer::step_group(const std::vector<size_t>& group, const Update& update) {
  std::vector<const State*> left;
  std::map<int64_t, std::vector<FusedTensors>> on_device;  // by the weight's steps
  for (const size_t i : group) {
    const State& s = states_[i];
    if (!is_stepped(s)) continue;
    if (device_kernels(s.parameter->leaf()) == nullptr) {
      if (!step_fused(s, update)) left.push_back(&s);
      continue;
    }
    const auto fused = fused_tensors(s);
    fused ? on_device[s.num_steps].push_back(*fused) : left.push_back(&s);
  }
  for (const auto& [steps, tensors] : on_device) {
    step_on_device(tensors, rule_of(options_, update, steps));
  }
  if (left.empty()) return;
  // Scaled gradients, and those of another type, are copies: make some at a time, not all, to save
  // memory. On a device each call costs a launch.
  const bool is_on_cpu = left[0]->parameter->leaf().is_cpu();
  const int64_t most_bytes = is_on_cpu && update.gradient_scale != 1 ? 1 : kStepBytes;
  std::vector<const State*> some;
  int64_t bytes = 0;
  for (const State* s : left) {
    some.push_back(s);
    bytes += static_cast<int64_t>(s->parameter->leaf().nbytes());
    if (bytes < most_bytes && s != left.back()) continue;
    step_by_libtorch(some, update);
    some.clear();
    bytes = 0;
  }
  refresh_copies(left);
}

bool Optimizer::step_fused(const State& state, const Update& update) const {
  const auto t = fused_tensors(state);
  if (!t || !t->leaf.is_cpu()) return false;
  AdamRun run;
  run.weight = t->leaf.mutable_data_ptr<float>();
  run.gradient = t->gradient.const_data_ptr();
  run.is_bf16_gradient = t->gradient.scalar_type() == at::kBFloat16;
  run.exp_avg = t->exp_avg.mutable_data_ptr<float>();
  run.exp_avg_sq = t->exp_avg_sq.mutable_data_ptr<float>();
  run.bf16_weight = bf16_data(t->read);
  const AdamRule rule = rule_of(options_, update, state.num_steps);
  at::RecordFunction record(at::RecordScope::USER_SCOPE);
  if (record.isActive()) record.before("cleave::adam");
  at::parallel_for(0, t->leaf.numel(), kGrain,
                   [&](int64_t begin, int64_t end) { adam_range(run, rule, begin, end); });
  note_written(*t);
  return true;
}

void Optimizer::step_by_libtorch(const std::vector<const State*>& states,
                                 const Update& update) const {
  std::vector<Tensor> params, grads, avgs, squares, steps;
  std::map<int64_t, Tensor> numbers;  // of steps; on a device each costs a launch
  for (const State* s : states) {
    const Tensor& leaf = s->parameter->leaf();
    params.push_back(leaf.detach());
    // libtorch's kernels for Adam read memory in order, whatever the strides.
    const Tensor gradient = leaf.grad().to(leaf.scalar_type()).contiguous();
    grads.push_back(update.gradient_scale == 1 ? gradient : gradient * update.gradient_scale);
    avgs.push_back(s->exp_avg);
    squares.push_back(s->exp_avg_sq);
    Tensor& number = numbers[s->num_steps];
    if (!number.defined()) {
      number = at::full({}, static_cast<double>(s->num_steps),
                        at::device(leaf.device()).dtype(at::kFloat));
    }
    steps.push_back(number);
  }
  if (options_.kind == Kind::kSgd) {
    for (size_t i = 0; i < params.size(); ++i) {
      if (update.weight_decay != 0) grads[i] = grads[i].add(params[i], update.weight_decay);
      params[i].add_(grads[i], -update.lr);
    }
    return;
  }
  if (options_.kind != Kind::kAdam) {
    at::_fused_adamw_(params, grads, avgs, squares, {}, steps, update.lr, options_.beta1,
                      options_.beta2, update.weight_decay, options_.eps, false, false);
  } else {
    at::_fused_adam_(params, grads, avgs, squares, {}, steps, update.lr, options_.beta1,
                     options_.beta2, update.weight_decay, options_.eps, false, false);
  }
}

void Optimizer::set_num_steps(int64_t steps) {
  num_steps_ = steps;
  for (State& s : states_) s.num_steps = steps;
}

void Optimizer::set_num_steps(const Parameter& weight, int64_t steps) {
  for (State& s : states_) {
    if (s.parameter.get() == &weight) s.num_steps = steps;
  }
}

void Optimizer::zero_grad() {
  for (const State& s : states_) s.parameter->drop_gradients();
}

LrSchedule::Kind LrSchedule::kind_from_name(const std::string& name) {
  if (name == "cosine") return Kind::kCosine;
  if (name == "linear") return Kind::kLinear;
  if (name == "constant") return Kind::kConstant;
  if (name == "wsd") return Kind::kWsd;
  throw Error(Code::kUsage,
              str("schedule '", name, "' is unknown; expected cosine, linear, constant or wsd"));
}

double LrSchedule::at(int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (kind == Kind::kConstant) return peak;
  const int64_t start = kind == Kind::kWsd ? std::max(warmup, num_steps - decay) : warmup;
  if (step < start) return peak;
  const double rest = static_cast<double>(std::max<int64_t>(num_steps - start, 1));
  const double done = std::min(static_cast<double>(step - start) / rest, 1.0);
  const double share =
      kind == Kind::kCosine ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return std::lerp(min, peak, share);  // exact at both ends
}

}  // namespace cleave::inline optim
