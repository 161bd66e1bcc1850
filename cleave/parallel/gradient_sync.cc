#include "cleave/parallel/gradient_sync.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/fused.h"
#include "cleave/nn/gradient_state.h"
#include "cleave/runtime/step_recorder.h"
#include "cleave/torch_internals/graph.h"
#include "cleave/torch_internals/node.h"

// Why a layer's gradients are complete when backward reaches the identity node on its input: of the
// ready nodes autograd's engine runs the one that was created last, so all nodes of the layer's
// call run before that identity, and nodes that accumulate into leaves run before all others. A
// layer that recomputes runs its own backward inside one node. Deferred weight gradients
// (zero-bubble) come later: num_passes is 0 then.

namespace cleave::inline parallel {

namespace {

/// The sum of a tensor's elements, read as integers: the same in any order.
Tensor sum_of_bits(const Tensor& t) {
  const at::ScalarType bits = t.element_size() == 2   ? at::kShort
                              : t.element_size() == 4 ? at::kInt
                                                      : at::kLong;
  return t.detach().contiguous().view(bits).sum(at::kLong);
}

}  // namespace

/// Reports when backward has finished a call of a layer.
class GradSyncHook : public Wrap {
 public:
  GradSyncHook(std::shared_ptr<GradientSync> sync, size_t layer)
      : sync_(std::move(sync)), layer_(layer) {}

  [[nodiscard]] bool is_outermost() const override { return true; }

  DTensor call(Layer& /*layer*/, const DTensor& x, const Context& context,
               const Next& next) override {
    if (!needs_grad(x.local())) return next(x, context);
    const auto identity = [](const Tensor& t) { return t; };
    const auto passed = [sync = sync_, layer = layer_](const Tensor& gradient) {
      sync->finish_pass(layer);
      return gradient;
    };
    return next(x.with(differentiable("grad_sync", x.local(), identity, passed)), context);
  }

 private:
  std::shared_ptr<GradientSync> sync_;
  size_t layer_;
};

GradientSync::GradientSync(const Parameters& parameters, const Axis& dp,
                           const GradientSyncOptions& options)
    // A gradient of zeros would be left on frozen weights, which no optimizer resets.
    : parameters_(trained_of(parameters)),
      dp_(std::make_shared<const Axis>(dp)),
      options_(options) {
  for (const auto& p : parameters_) {
    if (p->copies()) copies_ = std::make_shared<const Axis>(*p->copies());
  }
  record_on_leaves();
  if (options.sharding == DataSharding::kFsdp) return;
  if (options.precision) {
    Parameters common, wide;
    for (const auto& p : parameters_) (p->keeps_leaf_type() ? wide : common).push_back(p);
    add_buckets(common, *options.precision);
    ShardPrecision of_leaves = *options.precision;
    of_leaves.param = of_leaves.reduce;
    add_buckets(wide, of_leaves);
    return;
  }
  std::map<at::ScalarType, Parameters> by_type;
  for (const auto& p : parameters_) by_type[p->leaf().scalar_type()].push_back(p);
  for (const auto& [type, own] : by_type)
    add_buckets(own, {.param = type, .reduce = type, .sent = {}});
}

void GradientSync::add_buckets(const Parameters& parameters, const ShardPrecision& precision) {
  Parameters of_all, of_copies;
  for (const auto& p : parameters) (p->copies() ? of_copies : of_all).push_back(p);
  add_buckets_over(of_all, precision);
  add_buckets_over(of_copies, precision);
}

/// The parameters have the same data_of().
void GradientSync::add_buckets_over(const Parameters& parameters, const ShardPrecision& precision) {
  if (parameters.empty()) return;
  // With one data-parallel rank the only sums are over tp: one bucket needs one collective.
  const bool is_alone = data_of(*parameters.front())->size() == 1;
  const int64_t most = is_alone ? std::numeric_limits<int64_t>::max() : options_.bucket_bytes;
  const auto item = static_cast<int64_t>(at::elementSize(precision.sent_type()));
  // A parameter that other stages use has its own bucket: all of its ranks shard it the same way.
  Parameters tied;
  if (is_zero1() && options_.pipeline != nullptr) tied = options_.pipeline->tied_parameters();
  const auto is_tied = [&](const auto& p) {
    return std::find(tied.begin(), tied.end(), p) != tied.end();
  };
  const auto first = std::ssize(buckets_);
  Parameters bucket;
  int64_t bytes = 0;
  for (const auto& p : parameters) {
    if (is_tied(p)) continue;
    bucket.push_back(p);
    // Counts the whole tensor, so that all ranks of tp form the same buckets.
    bytes += item * p->numel();
    if (bytes < most) continue;
    add_bucket(std::exchange(bucket, {}), precision);
    bytes = 0;
  }
  if (!bucket.empty()) add_bucket(std::move(bucket), precision);
  std::reverse(buckets_.begin() + first, buckets_.end());
  for (const auto& p : parameters) {
    if (is_tied(p)) add_bucket({p}, precision);
  }
}

void GradientSync::add_bucket(Parameters parameters, const ShardPrecision& precision) {
  const size_t count = parameters.size();
  const Axis& data = *data_of(*parameters.front());
  auto shards = is_zero1() ? std::make_unique<FlatShards>(std::move(parameters), data)
                           : std::make_unique<FlatShards>(std::move(parameters), Axis(), data);
  buckets_.push_back({.shards = std::move(shards), .precision = precision});
  buckets_.back().sums.resize(count);
}

/// Records on the leaves, which can be other tensors in each step, what completes their gradients.
void GradientSync::record_on_leaves() const {
  for (const auto& p : parameters_) record_sync(*p, data_of(*p));
}

at::ScalarType GradientSync::read_type_of(const Bucket& bucket) {
  return read_type(*bucket.shards->parameters().front(), bucket.precision);
}

/// Data-parallel ranks that begin with different weights, by a seed of their own for example, would
/// train without an error and learn nothing.
void GradientSync::check_same_weights(const Axis& data) {
  Parameters compared;
  std::vector<Tensor> sums;  // the largest sum and the largest negated one differ if the sums do
  for (const auto& p : parameters_) {
    if (data_of(*p).get() != &data || !p->leaf().defined() || p->leaf().is_meta()) continue;
    compared.push_back(p);
    sums.push_back(sum_of_bits(p->leaf()));
    sums.push_back(sums.back().neg());
  }
  if (compared.empty()) return;
  has_compared_weights_ = true;
  const Tensor largest =
      data.all_reduce(at::stack(sums), "comparison of weights", ReduceOp::kMax).cpu();
  const auto* values = largest.const_data_ptr<int64_t>();
  for (size_t i = 0; i < compared.size(); ++i) {
    CLEAVE_CHECK(values[2 * i] == -values[2 * i + 1], Code::kUsage, compared[i]->name(),
                 " differs between data-parallel ranks; fill it with the same numbers on all, for "
                 "example from the same seed");
  }
}

void GradientSync::compare_weights_once() {
  // ZeRO-1 and FSDP have one copy of each weight.
  if (has_compared_weights_ || options_.sharding != DataSharding::kNone) return;
  for (const auto& data : {dp_, copies_}) {
    if (data != nullptr && data->size() > 1) check_same_weights(*data);
  }
}

void GradientSync::refresh_weights() {
  const at::NoGradGuard no_grad;
  record_on_leaves();
  check_types();
  compare_weights_once();
  const auto start_gather = [&](size_t b) {
    // A stage whose weights are all frozen has no buckets.
    if (b >= buckets_.size() || !buckets_[b].shards->is_sharded()) return Work();
    return buckets_[b].shards->start_gather(read_type_of(buckets_[b]));
  };
  Work next = start_gather(0);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    const Parameters& parameters = bucket.shards->parameters();
    if (!bucket.shards->is_sharded()) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        const Tensor& leaf = parameters[i]->leaf();
        if (leaf.scalar_type() != read_type_of(bucket)) {
          set_compute_copy(bucket, i, leaf.detach());
        }
      }
      next = start_gather(b + 1);
      continue;
    }
    const Tensor whole = next.wait();
    // Gather the next bucket while this one is copied.
    next = start_gather(b + 1);
    const std::vector<Tensor> parts = bucket.shards->parts_of(whole);
    for (size_t i = 0; i < parts.size(); ++i) set_compute_copy(bucket, i, parts[i]);
  }
}

void GradientSync::set_compute_copy(Bucket& bucket, size_t i, const Tensor& value) {
  Parameter& p = *bucket.shards->parameters()[i];
  if (const Tensor copy = p.other_use(); copy.defined()) {
    copy.detach().copy_(value);  // graphs and kernels refer to this tensor
    p.note_copied();
    return;
  }
  const at::ScalarType type = read_type_of(bucket);
  const Tensor read = value.to(type, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  if (type != bucket.precision.reduce) {
    // The first gradient keeps its type: if it stays the only one, a wider copy would only cost
    // memory.
    const auto sum = bucket.sums[i] = std::make_shared<Tensor>();
    const bool is_fp32 = bucket.precision.reduce == at::kFloat;
    const std::weak_ptr<Parameter> parameter = bucket.shards->parameters()[i];
    take_gradients(
        read, [sum, is_fp32, parameter, type = bucket.precision.reduce](const Tensor& gradient) {
          if (const auto own = parameter.lock()) record_late_backward(*own);
          if (!sum->defined()) {
            *sum = gradient;
          } else {
            *sum = is_fp32 ? add_in_fp32(*sum, gradient) : sum->to(type).add_(gradient);
          }
        });
  }
  p.set_copy(read, bucket.sums[i]);
}

Tensor& GradientSync::gradient_of(const Bucket& bucket, size_t i) {
  const Parameter& p = *bucket.shards->parameters()[i];
  if (bucket.sums[i]) return *bucket.sums[i];
  const Tensor copy = p.other_use();
  return (copy.defined() ? copy : p.leaf()).mutable_grad();  // the parameter keeps both
}

bool GradientSync::has_incomplete_gradients() const {
  return has_unsummed_copies() ||
         std::any_of(buckets_.begin(), buckets_.end(),
                     [](const Bucket& bucket) { return bucket.reduction.is_pending(); });
}

bool GradientSync::has_unsummed_copies() const {
  for (const Bucket& bucket : buckets_) {
    for (size_t i = 0; i < bucket.sums.size(); ++i) {
      // If forward reads the leaf itself, its gradient is on the leaf already. The copy of a weight
      // that is not trained now gets a gradient too, which nobody sums.
      const Parameter& p = *bucket.shards->parameters()[i];
      if (!p.is_trained()) continue;
      const bool has_copy = bucket.sums[i] || p.other_use().defined();
      if (has_copy && gradient_of(bucket, i).defined()) return true;
    }
  }
  return false;
}

// Whether complete() ran in this step already. Throws if a backward ran since.
bool GradientSync::is_complete() const {
  for (const Bucket& bucket : buckets_) {
    if (bucket.reduction.is_pending()) return false;
    for (const auto& p : bucket.shards->parameters()) {
      if (!p->is_trained()) continue;
      if (!has_record(*p)) return false;
      for (const Axis& axis : {p->axis(), *data_of(*p)}) (void)is_summed(*p, axis);
    }
  }
  CLEAVE_CHECK(!has_incomplete_gradients(), Code::kUsage,
               "backward ran after the gradients were reduced; reduce them once a step, after the "
               "last backward, and call zero_grad() before the next step");
  return true;
}

void GradientSync::finish_pass(size_t layer) {
  const size_t expected = num_passes_ * num_calls_[layer];
  if (++num_passed_[layer] != expected) {
    CLEAVE_CHECK(num_passes_ == 0 || num_passed_[layer] < expected, Code::kUsage, "begin(",
                 num_passes_, ") of the GradientSync announced ", num_passes_,
                 " micro-batches, and backward ran for more; their gradients would be lost. Give "
                 "the number of micro-batches of a step, or 0 if it is unknown");
    return;
  }
  while (num_started_ < buckets_.size() && buckets_[num_started_].first_layer >= layer) {
    start_next();
  }
}

void GradientSync::start_next() {
  Bucket& bucket = buckets_[num_started_++];
  for (const auto& p : bucket.shards->parameters()) {
    CLEAVE_CHECK(
        p->is_flat() == bucket.shards->is_sharded(), Code::kUsage, p->name(),
        " was sharded by fully_shard, which sums gradients itself; shard the layers before "
        "the NxDPPModel is made, or give GradientSync the sharding kFsdp");
  }
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < bucket.sums.size(); ++i) {
    gradients.push_back(std::exchange(gradient_of(bucket, i), {}));
  }
  bucket.reduction = bucket.shards->start_reduce(std::move(gradients), bucket.precision);
}

void GradientSync::check_types() const {
  const bool is_read = options_.precision && options_.sharding != DataSharding::kFsdp;
  if (is_read) check_leaf_types(parameters_, *options_.precision);
}

void GradientSync::check_reads_copies() const {
  check_types();
  for (const Bucket& bucket : buckets_) {
    for (size_t i = 0; i < bucket.sums.size(); ++i) {
      const Parameter& p = *bucket.shards->parameters()[i];
      const bool is_stale = bucket.sums[i] && p.is_readable() && !p.other_use().defined();
      CLEAVE_CHECK(!is_stale, Code::kUsage, p.name(),
                   " was filled after refresh_weights(), so forward reads the leaf instead of its "
                   "copy in the compute type; call refresh_weights() after the weights are filled");
    }
  }
}

void GradientSync::begin(size_t num_micro_batches) {
  record_on_leaves();
  check_reads_copies();
  check_no_stale_gradients(parameters_);
  const bool is_on_leaf = std::any_of(parameters_.begin(), parameters_.end(), [](const auto& p) {
    return p->leaf().defined() && p->is_trained() && p->leaf().grad().defined();
  });
  CLEAVE_CHECK(!is_on_leaf && !has_unsummed_copies(), Code::kUsage,
               "backward ran before begin(), and complete() did not follow; call zero_grad() to "
               "discard its gradients");
  // A step that was given up, before complete(), has started some.
  for (Bucket& bucket : buckets_) {
    if (bucket.reduction.is_pending()) (void)bucket.shards->finish_reduce(bucket.reduction);
  }
  reset_step();
  // Deferred weight gradients are not there yet when backward has passed a layer.
  const bool defers = options_.pipeline != nullptr && options_.pipeline->defers_weight_gradients();
  num_passes_ = defers ? 0 : num_micro_batches;
}

void GradientSync::reset_step() {
  num_started_ = 0;
  num_passes_ = 0;
  std::fill(num_passed_.begin(), num_passed_.end(), 0);
}

void GradientSync::complete() {
  const RecordedScope recorded(EventKind::kPhase, "gradient sync");
  record_on_leaves();
  check_reads_copies();
  if (options_.sharding == DataSharding::kFsdp) {
    Axis tp;
    for (const auto& p : parameters_) {
      if (p->axis().size() > 1) tp = p->axis();
    }
    finish_gradients(parameters_, tp);  // parameters that the loss does not use get zeros
  } else if (!is_complete()) {
    compare_weights_once();
    sum_buckets();
  }
  if (options_.pipeline != nullptr) options_.pipeline->sum_tied_gradients();
}

void GradientSync::sum_buckets() {
  while (num_started_ < buckets_.size()) start_next();
  for (Bucket& bucket : buckets_) {
    const std::vector<Tensor> reduced = bucket.shards->finish_reduce(bucket.reduction);
    for (size_t i = 0; i < reduced.size(); ++i) {
      const Parameter& p = *bucket.shards->parameters()[i];
      if (!p.is_trained()) continue;
      // Shares the bucket's memory but has its own version counter, which the record compares.
      p.leaf().mutable_grad() = reduced[i].variable_data();
    }
    bucket.shards->record_reduced();
  }
  reset_step();
}

void sum_during_backward(const std::shared_ptr<GradientSync>& sync,
                         const std::vector<Layer*>& in_order) {
  auto& buckets = sync->buckets_;
  if (sync->dp_->size() == 1 || buckets.empty()) return;
  sync->num_passed_.assign(in_order.size(), 0);
  sync->num_calls_.assign(in_order.size(), 0);
  std::map<const Layer*, size_t> first_call;  // a layer may be called several times
  for (size_t l = 0; l < in_order.size(); ++l) {
    ++sync->num_calls_[first_call.emplace(in_order[l], l).first->second];
  }
  std::map<const Parameter*, size_t> first;
  for (size_t l = 0; l < in_order.size(); ++l) {
    for (const auto& p : in_order[l]->parameters()) first.emplace(p.get(), l);
  }
  for (auto& bucket : buckets) {
    bucket.first_layer = in_order.size();
    for (const auto& p : bucket.shards->parameters()) {
      const auto at = first.find(p.get());
      const size_t layer = at == first.end() ? 0 : at->second;
      bucket.first_layer = std::min(bucket.first_layer, layer);
    }
  }
  // Buckets that backward completes first start first; among equals, those of later parameters.
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const auto& a, const auto& b) { return a.first_layer > b.first_layer; });
  std::set<size_t> ends;
  for (const auto& bucket : buckets) ends.insert(bucket.first_layer);
  for (const size_t layer : ends) {
    in_order[layer]->attach(std::make_unique<GradSyncHook>(sync, layer));
  }
}

}  // namespace cleave::inline parallel
