#include "cleave/nn/parameter.h"

#include <algorithm>
#include <span>

#include <ATen/ATen.h>

#include "cleave/base/philox.h"
#include "cleave/layout/shards.h"
#include "cleave/nn/call_record.h"

namespace cleave::inline nn {

int64_t Parameter::numel() const {
  return c10::multiply_integers(shape_);
}

Parameters trained_of(const Parameters& parameters) {
  Parameters trained;
  for (const auto& p : parameters) {
    if (!p->is_frozen()) trained.push_back(p);
  }
  return trained;
}

void Parameter::freeze(at::ScalarType compute) {
  CLEAVE_CHECK(!leaf_.defined(), Code::kUsage, name_,
               " has memory already; freeze it before materialize or load");
  role_ = Role::kFrozen;
  frozen_type_ = compute;
}

void Parameter::freeze_int8(int row_dim) {
  freeze(at::kChar);
  int8_row_dim_ = row_dim;
}

void Parameter::replicate(const Axis& axis) {
  if (!is_split()) axis_ = axis;
}

void Parameter::shard(const Axis& axis, int dim, const SplitPtr& split) {
  const Placement wanted = Shard{dim, split};
  if (placement_.is_shard()) {
    CLEAVE_CHECK(placement_.matches(wanted), Code::kShape, name_,
                 ": two entries of the plan disagree: ", placement_.describe(), " and ",
                 wanted.describe(), ", or different splits of one dim");
    return;
  }
  CLEAVE_CHECK(!is_flat(), Code::kUsage, name_,
               " is sharded over data-parallel ranks already; parallelize the model before that");
  CLEAVE_CHECK(!leaf_.defined() || !leaf_.grad().defined(), Code::kUsage, name_,
               " has a gradient of the whole tensor; zero it before the model is parallelized");
  CLEAVE_CHECK(
      split->whole() == shape_[static_cast<size_t>(dim)] && split->num_ranks() == axis.size(),
      Code::kShape, name_, ": dim ", dim, " has ", shape_[static_cast<size_t>(dim)],
      " elements; the split is of ", split->whole(), " over ", split->num_ranks(), " ranks");
  placement_ = wanted;
  axis_ = axis;
  if (!leaf_.defined()) return;
  leaf_.set_data(part_of(leaf_));
  use_ = leaf_;
}

void Parameter::change_split(const SplitPtr& split) {
  CLEAVE_CHECK(placement_.is_shard() && !leaf_.defined(), Code::kUsage, name_,
               leaf_.defined() ? " already has memory; change its split before materialize or load"
                               : " is not sharded yet");
  const Split* now = placement_.split().get();
  CLEAVE_CHECK(split->whole() == now->whole() && split->num_ranks() == now->num_ranks(),
               Code::kShape, name_, ": its split is of ", now->whole(), " over ", now->num_ranks(),
               " ranks; the new one of ", split->whole(), " over ", split->num_ranks());
  placement_ = Shard{placement_.dim(), split};
}

std::vector<int64_t> Parameter::local_shape() const {
  auto shape = shape_;
  if (is_split()) {
    shape[static_cast<size_t>(placement_.dim())] = placement_.split()->width(axis_.rank());
  }
  return shape;
}

std::vector<Range> Parameter::ranges() const {
  if (is_split()) return placement_.split()->ranges(axis_.rank());
  return {{0, shape_.empty() ? 1 : shape_[0]}};
}

std::vector<Range> Parameter::owned() const {
  if (ownership_ != Ownership::kOwned) return {};
  if (is_split()) return placement_.split()->owned(axis_.rank());
  if (axis_.rank() != 0) return {};
  return ranges();
}

void Parameter::shard_flat(const Axis& data, Range range) {
  if (is_flat() && *flat_ == range && data_axis_ == data) return;
  CLEAVE_CHECK(!is_flat(), Code::kUsage, name_,
               " is sharded over data-parallel ranks already; fully_shard and ZeRO-1 exclude each "
               "other, and each is applied once");
  data_axis_ = data;
  flat_ = range;
  if (leaf_.defined()) {
    set_leaf(leaf_.detach().flatten().narrow(0, range.begin, range.size()).clone());
  }
}

Range Parameter::flat_range() const {
  return flat_.value_or(Range{0, c10::multiply_integers(local_shape())});
}

std::vector<int64_t> Parameter::leaf_shape() const {
  return is_flat() ? std::vector<int64_t>{flat_->size()} : local_shape();
}

Tensor Parameter::part_of(const Tensor& whole) const {
  const at::NoGradGuard no_grad;
  const Tensor mine =
      is_split() ? Shards{axis_, placement_, name_}.slice(whole.detach()) : whole.detach();
  if (!is_flat()) return mine.clone();
  return mine.flatten().narrow(0, flat_->begin, flat_->size()).clone();
}

void Parameter::set_leaf(const Tensor& leaf) {
  CLEAVE_CHECK(leaf.sizes() == c10::IntArrayRef(leaf_shape()), Code::kShape, name_,
               ": a tensor of ", leaf.sizes(), " was given; this rank holds ",
               c10::IntArrayRef(leaf_shape()));
  leaf_ = leaf.detach().contiguous();  // optimizers access its memory in order
  leaf_.requires_grad_(leaf_.is_floating_point() && !is_frozen());
  use_ = is_flat() ? Tensor() : leaf_;
}

void Parameter::set_int8(const Tensor& values, const Tensor& scales) {
  set_leaf(values);
  scales_ = scales.detach();
}

const Tensor& Parameter::use() const {
  CLEAVE_CHECK(use_.defined(), Code::kUsage, name_,
               is_flat()
                   ? " is sharded and was read outside the call that gathers it"
                   : " has no memory yet; call materialize() or load a checkpoint before the first "
                     "forward");
  if (axis_.size() > 1 && !placement_.is_shard()) {
    if (CallRecord* call = CallRecord::current()) call->note_read(*this);
  }
  return use_;
}

void Parameter::used_in(const DTensor& activation) {
  if (CallRecord* call = CallRecord::current()) call->note_reported(*this);
  if (!activation.is_split() || is_split()) return;
  const Placement& p = activation.placement();
  const bool split_work = p.is_shard() || p.is_fanout();
  CLEAVE_CHECK(!used_in_split_work_ || *used_in_split_work_ == split_work, Code::kShape, name_,
               " is used in replicated work and in sharded work (now on a ", p.describe(),
               " made by ", activation.maker(),
               "); its gradient would be neither whole nor a partial sum");
  used_in_split_work_ = split_work;
}

bool Parameter::gradient_is_partial() const {
  if (axis_.size() == 1) return false;
  if (is_split()) return placement_.split()->overlaps();
  return used_in_split_work_.value_or(false);
}

template <class Number, class Fill>
Tensor Parameter::held_numbers(const Fill& fill) const {
  Tensor out = at::empty(local_shape(), at::dtype(c10::CppTypeToScalarType<Number>::value));
  Number* to = out.mutable_data_ptr<Number>();
  const int64_t dim = split_dim();
  int64_t outer = 1;
  int64_t inner = 1;
  for (int64_t d = 0; d < static_cast<int64_t>(shape_.size()); ++d) {
    if (d < dim) outer *= shape_[static_cast<size_t>(d)];
    if (d > dim) inner *= shape_[static_cast<size_t>(d)];
  }
  const int64_t whole = shape_.empty() ? 1 : shape_[static_cast<size_t>(dim)];
  for (int64_t o = 0; o < outer; ++o) {
    for (const Range& r : ranges()) {
      const auto count = static_cast<size_t>(r.size() * inner);
      fill(static_cast<uint64_t>((o * whole + r.begin) * inner), std::span<Number>(to, count));
      to += count;
    }
  }
  if (is_flat()) return out.flatten().narrow(0, flat_->begin, flat_->size()).clone();
  return out;
}

Tensor Parameter::initial_value(uint64_t seed, at::ScalarType dtype) const {
  const uint64_t key = stream_key(seed, name_);
  Tensor value;
  if (init_.kind == Init::Kind::kNormal) {
    value = held_numbers<double>(
                [key](uint64_t first, std::span<double> out) { fill_normal(key, first, out); })
                .mul_(init_.value)
                .to(dtype);
  } else if (init_.kind == Init::Kind::kUniform) {
    value = held_numbers<float>(
                [key](uint64_t first, std::span<float> out) { fill_uniform(key, 0, first, out); })
                .to(at::kDouble)
                .mul_(2)
                .sub_(1)
                .mul_(init_.value)
                .to(dtype);
  } else {
    value = at::full(leaf_shape(), init_.value, at::dtype(dtype));
  }
  return init_.zero_row < 0 ? value : value.mul_(zero_in_row(init_.zero_row));
}

Tensor Parameter::zero_in_row(int64_t row) const {
  const auto size = static_cast<uint64_t>(numel() / shape_[0]);
  const uint64_t begin = static_cast<uint64_t>(row) * size;
  return held_numbers<float>([&](uint64_t first, std::span<float> out) {
    std::ranges::fill(out, 1.0F);
    const uint64_t from = std::max(first, begin);
    const uint64_t to = std::min(first + out.size(), begin + size);
    if (from < to) std::ranges::fill(out.subspan(from - first, to - from), 0.0F);
  });
}

}  // namespace cleave::inline nn
