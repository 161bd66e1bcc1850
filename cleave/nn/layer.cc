#include "cleave/nn/layer.h"

#include <mutex>
#include <set>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "cleave/base/philox.h"
#include "cleave/comm/api/rank_thread.h"
#include "cleave/nn/call_record.h"
#include "cleave/nn/quantized_leaf.h"
#include "cleave/nn/subject.h"
#include "cleave/torch_internals/memory_cache.h"
#include "cleave/torch_internals/step_scope.h"

namespace cleave::inline nn {

// A layer that another one calls several times draws other random numbers in each call. Wraps keep
// the changed context, so a recomputed call draws the same ones again.
DTensor Layer::operator()(const DTensor& x, const Context& context) {
  if (at::GradMode::is_enabled()) check_own_rank();
  CallRecord* const caller = context.training ? CallRecord::current() : nullptr;
  const size_t earlier = caller != nullptr ? caller->count_call(*this) : 0;
  if (earlier == 0) return through_wraps(wraps_.size(), x, context);
  Context own = context;
  own.seed = stream_key(context.seed, str("call ", earlier, " of ", path()));
  return through_wraps(wraps_.size(), x, own);
}

void Layer::check_own_rank() {
  const std::shared_ptr<const char>& own = RankThread::current();
  if (own == nullptr || rank_.load(std::memory_order_relaxed) == own.get()) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::shared_ptr<const char> other = rank_is_alive_.lock();
  CLEAVE_CHECK(!other || other == own, Code::kUsage, layer_name(path()),
               " is used by two ranks of this process, and each rank needs a model of its own; "
               "construct the model in the function that run_job() or run_ranks() calls");
  rank_is_alive_ = own;
  rank_.store(own.get(), std::memory_order_relaxed);
}

DTensor Layer::through_wraps(size_t depth, const DTensor& x, const Context& context) {
  if (depth == 0) return step(x, context);
  const Next next = [self = self_, path = path_, depth](const DTensor& in, const Context& c) {
    CLEAVE_CHECK(*self != nullptr, Code::kUsage, subject(*path),
                 "the model was destroyed before its backward pass; keep it until backward ends");
    return (*self)->through_wraps(depth - 1, in, c);
  };
  return wraps_[depth - 1]->call(*this, x, context, next);
}

void Layer::attach(std::unique_ptr<Wrap> wrap) {
  CLEAVE_CHECK(!is_sealed(), Code::kUsage, layer_name(path()),
               " is fully sharded already, or its gradients are summed during backward; call "
               "recompute() and other wraps of the layer before fully_shard(), which gathers the "
               "weights that they read, and before sum_during_backward(), parallelize() or the "
               "partition of an NxDPPModel");
  wraps_.push_back(std::move(wrap));
}

void Layer::check_layout(const char* what, const DTensor& value, const Placement& expected) const {
  if (!value.is_split()) return;
  const Placement& p = value.placement();
  const bool same =
      p.matches(expected.normalised(value.dim())) || (expected.is_replicate() && p.is_whole());
  CLEAVE_CHECK(same, Code::kShape, subject(path()), "the plan states ", what, "=",
               expected.describe(), "; it is ", p.describe(), ", made by ", value.maker());
}

DTensor Layer::converted(const DTensor& x, const Placement& to) const {
  try {
    return x.redistribute(to);
  } catch (const Error& error) {
    if (error.code() != Code::kShape) throw;
    throw Error(Code::kShape, str(subject(path()), error.what()));
  }
}

DTensor Layer::step(const DTensor& x, const Context& context) {
  const LayerScope scope(path());
  try {
    if (expected_input_) check_layout("input", x, *expected_input_);
    DTensor y;
    {
      CallRecord call;  // of this layer only: conversions of its output count for its caller
      DTensor in = input_layout_ ? converted(x, *input_layout_) : x;
      if (const auto needed = accepts(in)) in = converted(in, *needed);
      PlacementsSeen::add(in);
      y = forward(in, context);
      call.finish(path());
    }
    if (expected_output_) check_layout("output", y, *expected_output_);
    if (output_layout_) y = converted(y, *output_layout_);
    y = y.made_by(path_);
    PlacementsSeen::add(y);  // for the enclosing call
    return y;
  } catch (const Error& error) {
    // The innermost layer prefixes its path, so outer layers rethrow unchanged.
    if (!std::string_view(error.what()).starts_with(MemoryCache::kNoMemory)) throw;
    throw Error(error.code(), str(subject(path()), error.what()));
  } catch (const c10::AcceleratorError& error) {
    // Found by some later call, so the layer says nothing about the cause.
    const std::string_view text = error.what_without_backtrace();
    throw Error(Code::kBug, str("the device failed: ", text.substr(0, text.find('\n')),
                                "; to see in which operation, set CUDA_LAUNCH_BLOCKING=1"));
  } catch (const c10::Error& error) {
    throw Error(is_out_of_memory(error) ? Code::kMemory : Code::kShape,
                str(subject(path()), error.what_without_backtrace()));
  }
}

void Layer::add(const std::string& name, Layer& child, const std::string& alias) {
  children_.push_back({.name = name, .alias = alias, .layer = &child});
  child.parent_ = this;
}

void Layer::add(const std::string& name, std::shared_ptr<Parameter>& parameter) {
  parameters_.push_back({.name = name, .parameter = &parameter});
}

namespace {

std::string joined(const std::string& path, const std::string& name) {
  if (path.empty() || name.empty()) return path + name;
  return path + "." + name;
}

}  // namespace

void Layer::name_tree() {
  bool is_named = true;
  root().walk([&](const Layer& layer) {
    is_named = is_named && !layer.paths_.empty();
    for (const Own& own : layer.parameters_) {
      is_named = is_named && !(*own.parameter)->name().empty();
    }
  });
  if (!is_named) root().name_below({""});
}

Layer& Layer::root() {
  Layer* layer = this;
  while (layer->parent_ != nullptr) layer = layer->parent_;
  return *layer;
}

std::vector<std::shared_ptr<Parameter>> Layer::own_parameters() const {
  std::vector<std::shared_ptr<Parameter>> own;
  for (const Own& o : parameters_) own.push_back(*o.parameter);
  return own;
}

std::vector<Layer*> Layer::children() const {
  std::vector<Layer*> out;
  for (const Child& child : children_) out.push_back(child.layer);
  return out;
}

double Layer::forward_flops_per_token(int64_t /*seq_len*/) const {
  int64_t weights = 0;
  for (const Own& own : parameters_) weights += (*own.parameter)->numel();
  return 2.0 * static_cast<double>(weights);
}

void Layer::name_below(const std::vector<std::string>& paths) {
  paths_ = paths;
  path_ = maker_name(paths.front());
  for (const Own& own : parameters_) {
    if ((*own.parameter)->name().empty()) (*own.parameter)->set_name(joined(path(), own.name));
  }
  for (const Child& child : children_) {
    std::vector<std::string> below;
    below.reserve(2 * paths.size());
    for (const std::string& p : paths) below.push_back(joined(p, child.name));
    if (child.alias != "-") {
      for (const std::string& p : paths) below.push_back(joined(p, child.alias));
    }
    child.layer->name_below(below);
  }
}

void Layer::walk(const std::function<void(Layer&)>& visit) {
  visit(*this);
  for (const Child& child : children_) child.layer->walk(visit);
}

std::vector<std::shared_ptr<Parameter>> Layer::parameters() {
  std::vector<std::shared_ptr<Parameter>> out;
  std::set<const Parameter*> seen;
  walk([&](Layer& layer) {
    for (const Own& own : layer.parameters_) {
      if (seen.insert(own.parameter->get()).second) out.push_back(*own.parameter);
    }
  });
  return out;
}

void Layer::split_columns(const Axis& /*axis*/) {
  throw Error(Code::kShape, str("style colwise does not apply to '", path(),
                                "'; it applies to Linear and Embedding layers"));
}

void Layer::split_rows(const Axis& /*axis*/) {
  throw Error(Code::kShape, str("style rowwise does not apply to '", path(),
                                "'; it applies to Linear and Embedding layers"));
}

void Layer::prepare_split(const Axis& /*axis*/) {}
void Layer::check_split(const Axis& /*axis*/) {}
std::optional<Placement> Layer::accepts(const DTensor& /*x*/) const {
  return std::nullopt;
}

DTensor call_in_order(std::span<Layer* const> layers, const DTensor& x, Context& context) {
  // Leave out the conversions of an earlier call: its backward frees their graph.
  context.values = context.values.with_locals(context.values.locals());
  DTensor y = x;
  for (Layer* layer : layers) {
    const std::string& from = layer->input_name();
    y = (*layer)(from.empty() ? y : context.values.at(from), context);
    const std::string& name = layer->output_name();
    if (!name.empty()) context.values = context.values.with(name, y);
  }
  return y;
}

DTensor LayerGroup::forward(const DTensor& /*x*/, const Context& /*context*/) {
  throw Error(Code::kUsage,
              str(layer_name(path()),
                  " only groups the layers below it; call one of those, or override forward()"));
}

void materialize(Layer& model, const MaterializeOptions& options) {
  model.check_own_rank();
  model.name_tree();
  for (const auto& p : model.parameters()) {
    const bool is_mine = p->ownership() != Parameter::Ownership::kNotOwned;
    if (!is_mine || p->leaf().defined()) continue;
    if (p->is_quantized()) {
      fill_quantized(*p, p->initial_value(options.seed, at::kFloat));
    } else {
      p->set_leaf(p->initial_value(options.seed, p->leaf_type(options.dtype)));
    }
  }
}

void move_to(Layer& model, at::Device device) {
  for (const auto& p : model.parameters()) {
    const Tensor& leaf = p->leaf();
    if (!leaf.defined() || leaf.device() == device) continue;
    const Tensor moved = leaf.detach().to(device);
    if (p->is_quantized()) {
      const Tensor& block_of = p->block_of();
      p->set_quantized(moved, p->scales().to(device),
                       block_of.defined() ? block_of.to(device) : block_of);
    } else {
      p->set_leaf(moved);
    }
  }
}

}  // namespace cleave::inline nn
