#include "cleave/layout/dtensor.h"

#include <mutex>
#include <set>

#include <ATen/ATen.h>

#include "cleave/layout/node.h"
#include "cleave/layout/shards.h"

namespace cleave {

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
  if (!placement_.is_shard()) return;
  const Split* split = placement_.split();
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
  if (dim < 0) dim += local_.dim();
  return placement_.is_shard(dim) ? placement_.split()->whole() : local_.size(dim);
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
  to = to.normalised(local_.dim());
  if (placement_.matches(to)) return *this;
  if (to.is_shard() && to.split() == nullptr) {
    to = Shard{to.dim(), Split::balanced(size(to.dim()), axis_.size())};
  }
  const bool grad = at::GradMode::is_enabled();
  if (!memo_.local.defined() || !memo_.placement.matches(to) || memo_.grad != grad) {
    memo_ = {.local = convert(to), .placement = to, .grad = grad};
  }
  return {memo_.local, axis_, to, maker_};
}

Tensor DTensor::full_tensor() const {
  // Without a gradient there is no partial sum to lose, so a Fanout is as good as a Replicate.
  const bool whole = placement_.is_replicate() || (placement_.is_fanout() && !needs_grad(local_));
  return whole ? local_ : redistribute(Replicate{}).local();
}

// Each row of the design's table: the forward and the backward of one change of layout.
Tensor DTensor::convert(const Placement& to) const {
  const Shards from_shards{axis_, placement_, site(to)};
  const Shards to_shards{axis_, to, from_shards.site};
  const auto identity = [](const Tensor& t) { return t; };
  const auto sum = [s = from_shards](const Tensor& t) { return s.axis.all_reduce(t, s.site); };
  const auto gather = [s = from_shards](const Tensor& t) { return s.gather(t); };
  // Holders of one element each have a part of its gradient: going to a shard their sum goes back,
  // and coming from one the first holder, whose value went on, gets the gradient.
  const auto slice = [s = from_shards](const Tensor& t) { return s.owned_slice(t); };
  const auto scatter = [s = from_shards](const Tensor& t) {
    return s.placement.split()->overlaps() ? s.owned_slice(s.axis.all_reduce(t, s.site))
                                           : s.sum_and_slice(t);
  };
  const auto gather_to = [s = to_shards](const Tensor& t) { return s.gather_parts(t); };
  const auto slice_to = [s = to_shards](const Tensor& t) { return s.slice(t); };
  const auto scatter_to = [s = to_shards](const Tensor& t) { return s.sum_and_slice(t); };
  const auto pad_to = [s = to_shards](const Tensor& t) { return s.zero_padded(t); };
  const auto swap = [from_shards, to_shards](const Tensor& t) {
    return exchange(t, from_shards, to_shards);
  };
  const auto swap_back = [from_shards, to_shards](const Tensor& t) {
    return exchange_gradient(t, from_shards, to_shards);
  };
  using Kind = Placement::Kind;
  const Kind kind = placement_.kind();
  const Kind target = to.kind();
  if (kind == Kind::kReplicate) {
    if (target == Kind::kFanout)
      return differentiable("replicate_to_fanout", local_, identity, sum);
    if (target == Kind::kShard)
      return differentiable("replicate_to_shard", local_, slice_to, gather_to);
  }
  if (kind == Kind::kFanout && target == Kind::kShard) {
    return differentiable("fanout_to_shard", local_, slice_to, pad_to);
  }
  if (kind == Kind::kPartial) {
    if (target == Kind::kReplicate)
      return differentiable("partial_to_replicate", local_, sum, identity);
    if (target == Kind::kFanout) return differentiable("partial_to_fanout", local_, sum, sum);
    if (target == Kind::kShard)
      return differentiable("partial_to_shard", local_, scatter_to, gather_to);
  }
  if (kind == Kind::kShard) {
    if (target == Kind::kReplicate)
      return differentiable("shard_to_replicate", local_, gather, slice);
    if (target == Kind::kFanout) return differentiable("shard_to_fanout", local_, gather, scatter);
    if (target == Kind::kShard) return differentiable("shard_to_shard", local_, swap, swap_back);
  }
  throw Error(Code::kShape, str("no way from ", placement_.describe(), " to ", to.describe(),
                                " (value made by ", maker(), ")"));
}

namespace {

void check_same_layout(const char* what, const DTensor& a, const DTensor& b) {
  const bool same =
      a.is_split() == b.is_split() &&
      (!a.is_split() || (a.axis() == b.axis() && a.placement().matches(b.placement())));
  CLEAVE_CHECK(same, Code::kShape, "cannot ", what, " ", a.placement().describe(), " (made by ",
               a.maker(), ") and ", b.placement().describe(), " (made by ", b.maker(),
               "); give both one layout in the plan");
}

}  // namespace

DTensor map(const std::function<Tensor(const Tensor&, const Tensor&)>& f, const DTensor& a,
            const DTensor& b) {
  check_same_layout("combine", a, b);
  CLEAVE_CHECK(!a.placement().is_partial(), Code::kShape,
               "an element-wise function of partial sums (made by ", a.maker(),
               ") is not the function of the sum; redistribute first");
  return a.with(f(a.local(), b.local()));
}

DTensor map(const std::function<Tensor(const Tensor&)>& f, const DTensor& a) {
  CLEAVE_CHECK(!a.placement().is_partial(), Code::kShape,
               "an element-wise function of partial sums (made by ", a.maker(),
               ") is not the function of the sum; redistribute first");
  return a.with(f(a.local()));
}

DTensor operator+(const DTensor& a, const DTensor& b) {
  check_same_layout("add", a, b);
  return a.with(a.local() + b.local()).made_by(maker_name(b.maker()));
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
                 ") were not cut together; give both the same style in the plan");
  }
}

}  // namespace cleave
