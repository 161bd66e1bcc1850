#include "cleave/layout/dtensor.h"

#include <mutex>
#include <optional>
#include <set>

#include <ATen/ATen.h>

#include "cleave/layout/placements_seen.h"
#include "cleave/layout/shards.h"
#include "cleave/torch_internals/node.h"

namespace cleave::inline layout {
namespace {

/// Changes when `t` is changed in place; 0 in inference mode, which does not count.
int64_t version_of(const Tensor& t) {
  return t.is_inference() ? 0 : t._version();
}

}  // namespace

const std::string* maker_name(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  return &*names.insert(name).first;
}

DTensor::DTensor(Tensor local, Axis axis, Placement placement, const std::string* maker)
    : local_(std::move(local)), axis_(std::move(axis)), maker_(maker) {
  if (!is_split()) return;
  placement_ = placement.normalised(local_.dim());
  PlacementsSeen::add(*this);
  if (!placement_.is_shard()) return;
  const Split* split = placement_.split().get();
  const int64_t size = local_.size(placement_.dim());
  CLEAVE_CHECK(split != nullptr, Code::kUsage, placement_.describe(),
               " around a local tensor needs its split; use DTensor::distribute, or Shard{",
               placement_.dim(), ", Split::balanced(whole, ranks)}");
  CLEAVE_CHECK(size == split->width(axis_.rank()), Code::kShape, "rank ", axis_.rank(), " of axis ",
               axis_.name(), " holds ", size, " of dim ", placement_.dim(), "; its split of ",
               split->whole(), " gives it ", split->width(axis_.rank()));
}

DTensor DTensor::distribute(const Tensor& whole, const Axis& axis, Placement placement) {
  DTensor d(whole, axis, Replicate{});
  CLEAVE_CHECK(placement.is_replicate() || placement.is_shard(), Code::kShape,
               "a whole tensor is distributed as Replicate or Shard, not ", placement.describe());
  return d.redistribute(placement);
}

int64_t DTensor::size(int64_t dim) const {
  if (dim < 0) dim += like().dim();
  return placement_.is_shard(dim) ? placement_.split()->whole() : like().size(dim);
}

DTensor DTensor::with(Tensor local, Placement placement) const {
  return {std::move(local), axis_, placement, maker_};
}

DTensor DTensor::with(Tensor local) const {
  return {std::move(local), axis_, placement_, maker_};
}

DTensor DTensor::made_by(const std::string* maker) const {
  DTensor d = *this;
  d.maker_ = maker;
  return d;
}

std::string DTensor::maker() const {
  if (maker_ == nullptr) return "the caller";
  return maker_->empty() ? "the model" : *maker_;
}

std::string DTensor::site(const Placement& to) const {
  return str(maker(), " ", placement_.describe(), " to ", to.describe());
}

DTensor DTensor::redistribute(Placement to) const {
  if (!is_split()) return *this;
  to = to.normalised(dim());
  if (placement_.matches(to)) return *this;
  if (to.is_shard() && to.split() == nullptr) {
    to = Shard{to.dim(), Split::balanced(size(to.dim()), axis_.size())};
  }
  const bool grad = at::GradMode::is_enabled();
  const int64_t version = version_of(local());
  if (!memo_.local.defined() || !memo_.placement.matches(to) || memo_.grad != grad ||
      memo_.version != version) {
    memo_ = {.local = convert(to), .placement = to, .grad = grad, .version = version};
  }
  return {memo_.local, axis_, to, maker_};
}

Tensor DTensor::full_tensor() const {
  // Without a gradient, a Fanout is the same as a Replicate.
  const bool whole = placement_.is_replicate() || (placement_.is_fanout() && !needs_grad(local()));
  return whole ? local() : redistribute(Replicate{}).local();
}

namespace {

using Move = Tensor (*)(const Tensor&, const Shards& from, const Shards& to);

/// A row of the table in docs/design/layouts.md: forward and backward of one conversion.
struct Change {
  const char* name;
  Move forward, backward;
};

Tensor same(const Tensor& t, const Shards& /*from*/, const Shards& /*to*/) {
  return t;
}
Tensor sum(const Tensor& t, const Shards& from, const Shards& /*to*/) {
  return from.axis.all_reduce(t, from.site);
}
Tensor gather(const Tensor& t, const Shards& from, const Shards& /*to*/) {
  return from.gather(t);
}
// With overlapping splits, each holder of an element has a part of its gradient. Backward of a
// conversion to Shard sums the parts. Backward of a conversion from Shard gives the gradient to the
// first holder, whose value was used.
Tensor owned_slice(const Tensor& t, const Shards& from, const Shards& /*to*/) {
  return from.owned_slice(t);
}
Tensor scatter(const Tensor& t, const Shards& from, const Shards& to) {
  return from.placement.split()->overlaps() ? from.owned_slice(sum(t, from, to))
                                            : from.sum_and_slice(t);
}
Tensor slice_to(const Tensor& t, const Shards& /*from*/, const Shards& to) {
  return to.slice(t);
}
Tensor gather_to(const Tensor& t, const Shards& /*from*/, const Shards& to) {
  return to.gather_parts(t);
}
Tensor scatter_to(const Tensor& t, const Shards& /*from*/, const Shards& to) {
  return to.sum_and_slice(t);
}
Tensor pad_to(const Tensor& t, const Shards& /*from*/, const Shards& to) {
  return to.zero_padded(t);
}

std::optional<Change> change_between(Placement::Kind from, Placement::Kind to) {
  using enum Placement::Kind;
  struct Row {
    Placement::Kind from, to;
    Change change;
  };
  static constexpr Row kTable[] = {
      {kReplicate, kFanout, {"replicate_to_fanout", same, sum}},
      {kReplicate, kShard, {"replicate_to_shard", slice_to, gather_to}},
      {kFanout, kShard, {"fanout_to_shard", slice_to, pad_to}},
      {kPartial, kReplicate, {"partial_to_replicate", sum, same}},
      {kPartial, kFanout, {"partial_to_fanout", sum, sum}},
      {kPartial, kShard, {"partial_to_shard", scatter_to, gather_to}},
      {kShard, kReplicate, {"shard_to_replicate", gather, owned_slice}},
      {kShard, kFanout, {"shard_to_fanout", gather, scatter}},
      {kShard, kShard, {"shard_to_shard", exchange, exchange_gradient}},
  };
  for (const Row& row : kTable) {
    if (row.from == from && row.to == to) return row.change;
  }
  return std::nullopt;
}

}  // namespace

Tensor DTensor::convert(const Placement& to) const {
  const auto change = change_between(placement_.kind(), to.kind());
  CLEAVE_CHECK(change, Code::kShape, "cannot convert ", placement_.describe(), " to ",
               to.describe(), " (value made by ", maker(), ")");
  if (change->forward == same && !needs_grad(local())) return local();
  const Shards from_shards{axis_, placement_, site(to)};
  const Shards to_shards{axis_, to, from_shards.site};
  return differentiable(
      change->name, local(),
      [&](const Tensor& t) { return change->forward(t, from_shards, to_shards); },
      [backward = change->backward, from_shards, to_shards](const Tensor& t) {
        return backward(t, from_shards, to_shards);
      });
}

namespace {

void check_same_placement(const char* what, const DTensor& a, const DTensor& b) {
  const bool same =
      a.is_split() == b.is_split() &&
      (!a.is_split() || (a.axis() == b.axis() && a.placement().matches(b.placement())));
  CLEAVE_CHECK(same, Code::kShape, "cannot ", what, " ", a.placement().describe(), " (made by ",
               a.maker(), ") and ", b.placement().describe(), " (made by ", b.maker(),
               "); give both the same placement in the plan");
}

}  // namespace

DTensor map(const std::function<Tensor(const Tensor&, const Tensor&)>& f, const DTensor& a,
            const DTensor& b) {
  check_same_placement("combine", a, b);
  CLEAVE_CHECK(!a.placement().is_partial(), Code::kShape,
               "cannot apply an element-wise function to partial sums (made by ", a.maker(),
               "): the result would not be that of the sum; redistribute to Replicate first");
  return a.with(f(a.local(), b.local()));
}

DTensor map(const std::function<Tensor(const Tensor&)>& f, const DTensor& a) {
  CLEAVE_CHECK(!a.placement().is_partial(), Code::kShape,
               "cannot apply an element-wise function to partial sums (made by ", a.maker(),
               "): the result would not be that of the sum; redistribute to Replicate first");
  return a.with(f(a.local()));
}

DTensor operator+(const DTensor& a, const DTensor& b) {
  check_same_placement("add", a, b);
  const Tensor& x = a.local();
  const Tensor& y = b.local();
  if (x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type() || x.device() != y.device()) {
    return b.with(x + y);
  }
  DTensor sum = b;
  sum.local_ = Tensor();
  sum.memo_ = {};
  sum.sum_ = std::make_shared<DTensor::Sum>(DTensor::Sum{.a = x,
                                                         .b = y,
                                                         .versions = {version_of(x), version_of(y)},
                                                         .grad = at::GradMode::is_enabled(),
                                                         .value = {}});
  PlacementsSeen::add(sum);
  return sum;
}

std::pair<Tensor, Tensor> DTensor::open_sum() const {
  if (!sum_ || sum_->value.defined() || sum_->grad != at::GradMode::is_enabled()) return {};
  const std::array now{version_of(sum_->a), version_of(sum_->b)};
  CLEAVE_CHECK(now == sum_->versions, Code::kUsage, "a term of a sum (made by ", maker(),
               ") was changed in place before the sum was read; read local() of the sum first");
  return {sum_->a, sum_->b};
}

void DTensor::set_sum(Tensor sum) const {
  *sum_ = {.a = {}, .b = {}, .versions = {}, .grad = false, .value = std::move(sum)};
}

void DTensor::compute_sum() const {
  if (!sum_->value.defined()) {
    const at::AutoGradMode grad_mode(sum_->grad);
    const auto [a, b] = open_sum();
    set_sum(a + b);
  }
  local_ = sum_->value;
  sum_.reset();
}

void split_work(std::initializer_list<const DTensor*> values) {
  const DTensor& first = **values.begin();
  for (const DTensor* v : values) {
    const Placement& p = first.placement();
    const Placement& q = v->placement();
    if (!first.is_split() && !v->is_split()) continue;
    bool together = first.axis() == v->axis() && p.kind() == q.kind() && !q.is_partial();
    if (together && p.is_shard()) {
      const bool family =
          !p.split()->family().empty() && p.split()->family() == q.split()->family();
      together = p.dim() == q.dim() && (p.split() == q.split() || family);
    }
    CLEAVE_CHECK(together, Code::kShape, first.maker(), " (", p.describe(), ") and ", v->maker(),
                 " (", q.describe(),
                 ") are not sharded together; give both the same style in the plan");
  }
}

}  // namespace cleave::inline layout
