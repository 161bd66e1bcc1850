#include "cleave/verify/reference.h"

#include <algorithm>
#include <functional>
#include <limits>

#include <ATen/ATen.h>

#include "cleave/base/suggest.h"
#include "cleave/checkpoint/load.h"
#include "cleave/file/model_path.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/nn/label_loss.h"
#include "cleave/parallel/plan.h"
#include "cleave/runtime/plain_kernels.h"
#include "cleave/verify/bound.h"
#include "cleave/verify/numbers.h"

namespace cleave::verifying {
namespace {

constexpr int kDraws = 2;  // of injected rounding; a single one may cancel by chance
constexpr int kTypedDraws = 3;

std::string name_of(const Layer& layer) {
  return layer.path().empty() ? "the model" : layer.path();
}

std::set<std::string> constants_of(Model& model) {
  std::set<std::string> names;
  for (const auto& p : model.parameters()) {
    const Tensor& leaf = p->leaf();
    if (leaf.numel() > 0 && leaf.min().equal(leaf.max())) names.insert(p->name());
  }
  return names;
}

void add_noise(Model& model, const VerifySettings& settings,
               const std::set<std::string>& constants) {
  const at::NoGradGuard no_grad;
  for (const auto& p : model.parameters()) {
    if (!constants.contains(p->name())) continue;
    Parameter other(p->shape(), Init::normal(0.1));
    other.set_name("verify " + p->name());
    if (p->is_split()) other.shard(p->axis(), p->placement().dim(), p->placement().split());
    p->leaf().detach().add_(other.initial_value(settings.seed, p->leaf().scalar_type()));
  }
}

/// Whether the pattern matches the layer or one that contains it.
bool is_wanted(const Layer& layer, const std::string& pattern) {
  if (pattern.empty()) return true;
  for (const std::string& path : layer.paths()) {
    for (size_t at = path.find('.'); at != std::string::npos; at = path.find('.', at + 1)) {
      if (matches(pattern, path.substr(0, at))) return true;
    }
    if (matches(pattern, path)) return true;
  }
  return false;
}

void mark_wanted(WantedRun& run, const std::vector<LayerCall>& calls, const std::string& pattern) {
  bool any = false;
  std::vector<std::string> names;
  for (size_t i = 0; i < calls.size(); ++i) {
    run.parts[i].is_run = is_wanted(*calls[i].layer, pattern);
    any = any || run.parts[i].is_run;
    if (!calls[i].layer->path().empty()) names.push_back(calls[i].layer->path());
  }
  CLEAVE_CHECK(any, Code::kUsage, "layer '", pattern, "' matches no layer that the model calls",
               did_you_mean(pattern, names));
}

Tensor labels_for(const Model& model, const Tensor& ids, const Tensor& logits, uint64_t seed) {
  const auto shape = logits.sizes().slice(0, static_cast<size_t>(logits.dim()) - 1);
  Tensor labels;
  if (model.task() == "regression") {
    labels = noise(shape, at::kDouble, seed, "labels");
  } else if (model.task() == "multilabel") {
    labels = noise_ids(logits.sizes(), 2, seed, "labels").to(at::kDouble);
  } else if (model.task() == "lm" && shape == ids.sizes()) {
    labels = next_token_labels(ids);
  } else {
    labels = noise_ids(shape, logits.size(-1), seed, "labels");
  }
  const Tensor unlabelled = labels.view(-1).slice(0, 3, std::nullopt, 7);  // some positions
  unlabelled.copy_(no_labels_like(unlabelled));
  return labels;
}

/// Terms of the longest sum in a part: over a dim of a weight, an input or an output, or over
/// tokens.
int64_t terms_of(const Part& part, const Tensor& x, const Tensor& y) {
  int64_t terms = x.dim() > 0 ? x.numel() / std::max<int64_t>(x.size(-1), 1) : 1;
  if (!x.is_floating_point()) terms = x.numel();
  for (const auto& p : part.parameters) {
    for (const int64_t size : p->shape()) terms = std::max(terms, size);
  }
  for (const Tensor& t : {x, y}) {
    for (const int64_t size : t.sizes()) terms = std::max(terms, size);
  }
  return terms;
}

/// Calls `run` with the weights in `type` and libtorch's operations.
void in_type(const Parameters& parameters, at::ScalarType type, const std::function<void()>& run) {
  std::vector<Tensor> kept;
  for (const auto& p : parameters) {
    kept.push_back(p->leaf().detach());
    p->set_leaf(p->leaf().detach().to(type));
  }
  const PlainKernels plain;
  run();
  for (size_t i = kept.size(); i-- > 0;) parameters[i]->set_leaf(kept[i]);  // one may occur twice
}

/// Injected rounding: its number, from 1, and its relative size.
struct Draw {
  int number;
  double size;

  [[nodiscard]] std::string stream(const std::string& of) const {
    return str("draw ", number, " ", of);
  }
};
using Run = std::function<std::vector<Quantity>(const Draw&)>;

/// The values of `run` while the weights and each layer's values are rounded at random.
std::vector<Quantity> rounded_run(const Draw& draw, Probes& probes, const Parameters& parameters,
                                  const VerifySettings& settings, const Run& run) {
  const WeightsGuard guard(parameters);
  for (const auto& p : parameters) {
    const at::NoGradGuard no_grad;
    const Tensor leaf = p->leaf().detach();
    leaf.copy_(rounded(leaf, draw.size, settings.seed, draw.stream(p->name())));
  }
  std::vector<Quantity> out;
  probes.perturb(draw.size, settings.seed + static_cast<uint64_t>(draw.number),
                 [&] { out = run(draw); });
  return out;
}

/// Observes the errors of one rank that computes in the type under test: one run, and more after
/// changes of last bits, since where large terms cancel, the error of a single run may be small by
/// chance.
void observe_typed(Bounds& bounds, Probes& probes, const Parameters& parameters,
                   const VerifySettings& settings, const Run& run) {
  in_type(parameters, settings.dtype, [&] {
    bounds.observe_one_rank(run({.number = 0, .size = 0}));
    for (int draw = 1; draw <= kTypedDraws; ++draw) {
      const Draw last_bits{.number = kDraws + draw, .size = Bounds::size(settings.dtype) / 2};
      bounds.observe_one_rank(rounded_run(last_bits, probes, parameters, settings, run));
    }
  });
}

/// The values with bounds, from draws of injected rounding.
std::vector<Wanted> with_bounds(Bounds& bounds, Probes& probes, const Parameters& parameters,
                                const VerifySettings& settings, const Run& run) {
  const auto values = [&](int number, double size) {
    return rounded_run({number, size}, probes, parameters, settings, run);
  };
  for (int draw = 1; draw <= kDraws; ++draw) {
    bounds.observe(values(draw, Bounds::size(settings.dtype)));
  }
  // The reference itself is in fp64: its errors show when last bits change.
  if (settings.dtype == at::kDouble) {
    bounds.observe_one_rank(values(kDraws + 1, std::numeric_limits<double>::epsilon()));
  }
  return bounds.wanted();
}

/// `t` rounded to `type`, in fp64.
Tensor storable(const Tensor& t, at::ScalarType type) {
  return t.is_floating_point() ? t.to(type).to(at::kDouble) : t;
}

/// The input of a part; ids stay as they are.
Tensor rounded_input(const Tensor& x, const Draw& draw, const VerifySettings& settings) {
  if (!x.is_floating_point() || draw.size == 0) return x;
  return rounded(x, draw.size, settings.seed, draw.stream("input"));
}

/// Sets input and values of a part that is run. `typed` is the part as it was recorded in the type
/// under test; null if that is fp64.
void fill_wanted(WantedPart& wanted, const Part& part, const Part* typed, Probes& probes,
                 const VerifySettings& settings) {
  const Tensor x = storable(part.x.local(), settings.dtype);
  const std::vector<Quantity> values = run_part(part, x, settings);
  Bounds bounds(
      values, settings.dtype,
      {.terms = terms_of(part, x, values.front().local) * settings.ep, .ranks = settings.tp});
  const auto run_on = [&settings](const Part& of, const Tensor& in) {
    return [&, in](const Draw& draw) {
      return run_part(of, rounded_input(in, draw, settings), settings);
    };
  };
  if (typed != nullptr) {
    const Tensor in = x.is_floating_point() ? x.to(settings.dtype) : x;
    observe_typed(bounds, probes, typed->parameters, settings, run_on(*typed, in));
  }
  wanted.x = x;
  wanted.values = with_bounds(bounds, probes, part.parameters, settings, run_on(part, x));
}

/// The values of a step with bounds; if `stepped`, the weights after it too.
std::vector<Wanted> wanted_step_of(Model& model, Probes& probes, const StepInput& input,
                                   const VerifySettings& settings, bool stepped) {
  const Parameters parameters = model.parameters();
  const Run run = [&](const Draw& /*draw*/) { return run_step(model, {}, input, settings); };
  const std::vector<Quantity> values = run({.number = 0, .size = 0});
  std::vector<Quantity> weights;
  if (stepped) {
    weights = stepped_weights(model);
  }
  int64_t terms = input.ids.numel();
  for (const int64_t size : values[1].local.sizes()) terms = std::max(terms, size);
  for (const auto& p : parameters) {
    for (const int64_t size : p->shape()) terms = std::max(terms, size);
  }
  Bounds bounds(values, settings.dtype, {.terms = terms, .ranks = settings.tp * settings.dp});
  if (settings.dtype != at::kDouble) {
    observe_typed(bounds, probes, parameters, settings, run);
  }
  std::vector<Wanted> out = with_bounds(bounds, probes, parameters, settings, run);
  for (size_t i = 0; i < weights.size(); ++i) {
    constexpr size_t kFirstGradient = 2;  // after loss and output
    out.push_back(wanted_step(weights[i], out[kFirstGradient + i], kLearningRate, kAdamEps,
                              master_type(settings.dtype)));
  }
  return out;
}

void add_parts(WantedRun& run, Model& model, Probes& probes, const VerifySettings& settings) {
  const auto calls = recorded(model, probes, Axis(), run.input, settings.seed);
  const auto parts = parts_of(calls, settings, run.input, {});
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string path = i < calls.size() ? calls[i].layer->path() : "";
    run.parts.push_back({.name = parts[i].name, .path = path, .x = {}});
  }
  mark_wanted(run, calls, settings.layer);
  std::vector<Part> typed;
  if (settings.dtype != at::kDouble) {
    in_type(model.parameters(), settings.dtype, [&] {
      typed = parts_of(recorded(model, probes, Axis(), run.input, settings.seed), settings,
                       run.input, {});
    });
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!run.parts[i].is_run) continue;
    fill_wanted(run.parts[i], parts[i], typed.empty() ? nullptr : &typed[i], probes, settings);
  }
}

void add_runs(Reference& reference, Model& model, Probes& probes, const VerifySettings& settings,
              const StepInput& input) {
  reference.runs.push_back({.input = input});
  add_parts(reference.runs.back(), model, probes, settings);
  reference.runs.back().step = wanted_step_of(model, probes, input, settings, true);
  StepInput dropout = input;
  dropout.training = true;
  const Tensor loss = run_step(model, {}, dropout, settings).front().local;
  if (loss.equal(reference.runs.back().step.front().value)) return;
  reference.runs.push_back({.input = dropout});
  add_parts(reference.runs.back(), model, probes, settings);
  reference.runs.back().step = wanted_step_of(model, probes, dropout, settings, false);
}

void add_ids(Reference& reference, const std::shared_ptr<Model>& model,
             const VerifySettings& settings) {
  if (model->task() != "lm" || settings.num_new_tokens == 0) return;
  const Tensor& ids = reference.runs.front().input.ids;
  for (const int64_t wish : {4, 2}) {
    const int64_t length = std::min(wish, ids.size(1));
    const int64_t* from = ids.const_data_ptr<int64_t>();
    reference.prompts.emplace_back(from, from + length);
  }
  reference.ids = continued(*model, Axis(), reference.prompts, settings.num_new_tokens);
  reference.scores = [model](const std::vector<int64_t>& row) {
    const at::NoGradGuard no_grad;
    const DTensor in(at::tensor(row, at::kLong).unsqueeze(0), Axis(), Replicate{});
    return (*model)(in, Context()).local()[0][-1];
  };
}

}  // namespace

void set_weights(Model& model, const VerifySettings& settings,
                 const std::set<std::string>& constants) {
  if (settings.weights) {
    read_from(settings.weights->folders(),
              [&] { load_model(model, *settings.weights, settings.dtype); });
  } else {
    materialize(model, {.seed = settings.seed, .dtype = settings.dtype});
  }
  add_noise(model, settings, constants);
}

std::vector<LayerCall> recorded(Model& model, Probes& probes, const Axis& tp,
                                const StepInput& input, uint64_t seed) {
  const at::NoGradGuard no_grad;
  return probes.record(
      [&] { model(DTensor(input.ids, tp, Replicate{}), context_of(input, seed)); });
}

std::vector<Part> parts_of(const std::vector<LayerCall>& calls, const VerifySettings& settings,
                           const StepInput& input, const ParallelAxes& axes) {
  const std::string how = input.training ? " with dropout" : "";
  std::vector<Part> parts;
  std::map<const Layer*, int> seen;
  for (const LayerCall& call : calls) {
    const int number = ++seen[call.layer];
    const auto run = [layer = call.layer, context = call.context](const DTensor& x) {
      return (*layer)(x, context);
    };
    const std::string which = number > 1 ? str(" (call ", number, ")") : "";
    parts.push_back({.name = str(name_of(*call.layer), which, how),
                     .x = call.x,
                     .run = run,
                     .parameters = call.layer->parameters(),
                     .tp = axes.tp,
                     .ep = axes.ep,
                     .is_leaf = call.is_leaf});
  }
  const Tensor& labels = input.labels;
  const auto count = has_label(labels).sum().item<int64_t>();
  parts.push_back(
      {.name = "the loss" + how,
       .kind = VerifiedPart::Kind::kLoss,
       .x = calls.back().y,
       .run = [&settings, labels,
               count](const DTensor& logits) { return loss_of(settings, logits, labels, count); },
       .tp = axes.tp});
  return parts;
}

Reference make_reference(const MakeModel& make, const VerifySettings& settings) {
  Reference reference;
  const std::shared_ptr<Model> model = make();
  model->name_tree();
  set_weights(*model, settings, {});
  reference.constants = constants_of(*model);
  add_noise(*model, settings, reference.constants);
  // The weights have the values of the sharded model's type, but compute in fp64.
  for (const auto& p : model->parameters()) p->set_leaf(p->leaf().detach().to(at::kDouble));
  for (const auto& p : model->parameters()) {
    reference.initial.push_back({.of = Of::kStart,
                                 .subject = p->name(),
                                 .value = p->leaf().detach().clone(),
                                 .bound = at::scalar_tensor(0.0, at::kDouble)});
  }
  const ModelFacts& facts = model->facts();
  const int64_t positions = facts.max_positions > 0 ? facts.max_positions : settings.num_tokens;
  const std::vector<int64_t> shape{settings.num_rows * settings.dp,
                                   std::min(settings.num_tokens, positions)};
  StepInput input{.ids = noise_ids(shape, facts.vocab_size, settings.seed, "ids"), .labels = {}};
  Probes probes(*model);
  const Tensor logits = recorded(*model, probes, Axis(), input, settings.seed).back().y.local();
  input.labels = labels_for(*model, input.ids, logits, settings.seed);
  add_runs(reference, *model, probes, settings, input);
  add_ids(reference, model, settings);
  return reference;
}

}  // namespace cleave::verifying
