#include "cleave/nn/parameter.h"

#include <set>

#include <ATen/ATen.h>

#include "cleave/layout/shards.h"
#include "cleave/nn/call_record.h"
#include "cleave/torch_internals/tensor.h"

namespace cleave::inline nn {
namespace {

/// Inference mode does not count changes.
uint32_t version_or_zero(const Tensor& t) {
  return t.is_inference() ? 0 : version_of(t);
}

}  // namespace

Parameters trained_of(const Parameters& parameters) {
  Parameters trained;
  std::set<const Parameter*> seen;  // joined lists of models that share a parameter have it twice
  for (const auto& p : parameters) {
    if (!p->is_frozen() && seen.insert(p.get()).second) trained.push_back(p);
  }
  return trained;
}

void Parameter::freeze(at::ScalarType compute) {
  CLEAVE_CHECK(!leaf_.defined(), Code::kUsage, name(),
               " has memory already; freeze it before materialize or load");
  set_frozen(compute);
}

void Parameter::freeze_quantized(const Quantization& quantization) {
  freeze(at::kChar);
  set_quantization(quantization);
}

QuantizedWeight Parameter::quantized() const {
  return {.form = quantization()->form,
          .shape = local_shape(),
          .row_dim = quantization()->row_dim,
          .values = use(),
          .scales = scales_,
          .block_of = block_of_};
}

void Parameter::shard(const Axis& axis, int dim, const SplitPtr& split) {
  const Placement wanted = Shard{dim, split};
  if (placement().is_shard()) {
    CLEAVE_CHECK(placement().matches(wanted), Code::kShape, name(),
                 ": two entries of the plan disagree: ", placement().describe(), " and ",
                 wanted.describe(), ", or different splits of one dim");
    return;
  }
  CLEAVE_CHECK(!is_flat(), Code::kUsage, name(),
               " is sharded over data-parallel ranks already; parallelize the model before that");
  CLEAVE_CHECK(!leaf_.defined() || !leaf_.grad().defined(), Code::kUsage, name(),
               " has a gradient of the whole tensor; zero it before the model is parallelized");
  CLEAVE_CHECK(
      split->whole() == shape()[static_cast<size_t>(dim)] && split->num_ranks() == axis.size(),
      Code::kShape, name(), ": dim ", dim, " has ", shape()[static_cast<size_t>(dim)],
      " elements; the split has ", split->whole(), " on ", split->num_ranks(), " ranks");
  check_not_packed();
  set_placement(axis, wanted);
  if (!leaf_.defined()) return;
  leaf_.set_data(part_of(leaf_));
  set_use(leaf_);
  if (is_quantized() && dim == quantization()->row_dim) {
    scales_ = Shards{axis, Shard{dim, split}, name()}.slice(scales_);
  }
}

void Parameter::change_split(const SplitPtr& split) {
  CLEAVE_CHECK(placement().is_shard() && !leaf_.defined(), Code::kUsage, name(),
               leaf_.defined() ? " already has memory; change its split before materialize or load"
                               : " is not sharded yet");
  const Split* now = placement().split().get();
  CLEAVE_CHECK(split->whole() == now->whole() && split->num_ranks() == now->num_ranks(),
               Code::kShape, name(), ": its split has ", now->whole(), " elements on ",
               now->num_ranks(), " ranks; the new split has ", split->whole(), " on ",
               split->num_ranks());
  set_placement(axis(), Shard{placement().dim(), split});
}

void Parameter::shard_flat(const Axis& data, Range range) {
  if (is_flat() && flat_range() == range && data_axis() == data) return;
  CLEAVE_CHECK(!is_flat(), Code::kUsage, name(),
               " is sharded over data-parallel ranks already; fully_shard and ZeRO-1 exclude each "
               "other, and each is applied once");
  check_not_packed();
  set_flat(data, range);
  if (leaf_.defined()) {
    set_leaf(leaf_.detach().flatten().narrow(0, range.begin, range.size()).clone());
  }
}

void Parameter::set_leaf(const Tensor& leaf) {
  CLEAVE_CHECK(leaf.sizes() == c10::IntArrayRef(stored_shape()), Code::kShape, name(),
               ": a tensor of ", leaf.sizes(), " was given; this rank holds ",
               c10::IntArrayRef(stored_shape()));
  const bool was_trained = is_trained();
  leaf_ = leaf.detach().contiguous();  // optimizers access its memory in order
  leaf_.requires_grad_(leaf_.is_floating_point() && was_trained);
  set_use(is_flat() ? Tensor() : leaf_);
}

void Parameter::drop_gradients() {
  if (leaf_.defined()) leaf_.mutable_grad().reset();
  if (use_.defined()) use_.mutable_grad().reset();
  if (use_gradients_) use_gradients_->reset();
}

void Parameter::set_quantized(const Tensor& values, const Tensor& scales, const Tensor& block_of) {
  set_leaf(values);
  scales_ = scales.detach();
  block_of_ = block_of;
}

void Parameter::check_not_packed() const {
  CLEAVE_CHECK(!is_nf4() || !leaf_.defined(), Code::kUsage, name(),
               " has memory in nf4 already; parallelize the model before materialize or load");
}

void Parameter::note_copied() {
  copied_version_ = version_or_zero(leaf_);
}

const Tensor& Parameter::use() const {
  CLEAVE_CHECK(use_.defined() || !name().empty(), Code::kUsage,
               "a parameter has no memory and no name: its layer, or a layer above it, was not "
               "registered by add()");
  CLEAVE_CHECK(use_.defined() || ownership() != Ownership::kNotOwned, Code::kUsage, name(),
               " has no memory on this rank, since its layer is in a pipeline stage of another "
               "rank; call run_train() or run_eval() of the PipelineModel instead of the model. "
               "generate() and other calls of a whole model need pp=1: save this one and load it "
               "with pp=1");
  CLEAVE_CHECK(
      use_.defined(), Code::kUsage, name(),
      is_flat() || leaf_.defined()  // FSDP on one rank
          ? " is sharded and was read outside the call that gathers it; with FSDP, read it "
            "only in the call of the layer that fully_shard() took (skip_bias_add: shard "
            "the layer that adds the bias); with ZeRO-1, call gather_weights() after the "
            "weights are filled"
          : " has no memory yet; call materialize() or load a checkpoint before the first "
            "forward");
  if (is_copy_) {
    CLEAVE_CHECK(copied_version_ == version_or_zero(leaf_), Code::kUsage, name(),
                 " was changed in place, and forward reads a copy of it (in another type, or under "
                 "ZeRO-1) with the old values; call refresh_weights() of the GradientSync, or "
                 "gather_weights() of the Zero1Optimizer, after weights are changed");
    if (use_.requires_grad() != leaf_.requires_grad()) {
      use_.set_requires_grad(leaf_.requires_grad());
    }
  }
  if (axis().size() > 1 && !placement().is_shard()) {
    if (CallRecord* call = CallRecord::current()) call->note_read(*this);
  }
  return use_;
}

void Parameter::used_in(const DTensor& activation) {
  if (CallRecord* call = CallRecord::current()) call->note_reported(*this);
  if (!activation.is_split() || is_split()) return;
  if (!at::GradMode::is_enabled() || !is_trained()) return;  // this call gives it no gradient
  const Placement& p = activation.placement();
  const bool split_work = p.is_shard() || p.is_fanout();
  CLEAVE_CHECK(!used_in_split_work_ || *used_in_split_work_ == split_work, Code::kShape, name(),
               " is used both on replicated and on sharded activations (now on a ", p.describe(),
               " made by ", activation.maker(),
               "); its gradient would be neither whole nor a partial sum");
  used_in_split_work_ = split_work;
}

bool Parameter::gradient_is_partial() const {
  if (axis().size() == 1) return false;
  if (is_split()) return placement().split()->overlaps();
  return used_in_split_work_.value_or(false);
}

}  // namespace cleave::inline nn
