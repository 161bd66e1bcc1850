#include "cleave/nn/heads_norm.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "cleave/nn/norm.h"
#include "cleave/nn/subject.h"

namespace cleave::inline nn {
namespace {

/// The sum of squares [.., 1] of the columns that `rank` is the first to hold.
Tensor owned_squares(const Tensor& x, const Split& split, int rank) {
  Tensor sum = x.narrow(-1, 0, 0).square().sum(-1, true);  // connects a rank that owns none
  int64_t begin = 0;
  for (const Range& held : split.ranges(rank)) {
    for (const Range& own : split.owned(rank)) {
      const int64_t low = std::max(held.begin, own.begin);
      const int64_t high = std::min(held.end, own.end);
      if (low >= high) continue;
      sum = sum + x.narrow(-1, begin + low - held.begin, high - low).square().sum(-1, true);
    }
    begin += held.size();
  }
  return sum;
}

}  // namespace

HeadsNorm::HeadsNorm(QkNorm kind, int64_t num_heads, int64_t head_dim, double eps, double offset)
    : kind_(kind),
      head_dim_(head_dim),
      eps_(eps),
      offset_(offset),
      weight_(std::make_shared<Parameter>(
          std::vector<int64_t>{kind == QkNorm::kAllHeads ? num_heads * head_dim : head_dim},
          Init::constant(1 - offset))) {
  add("weight", weight_);
}

void HeadsNorm::split_columns(const Axis& axis) {
  CLEAVE_CHECK(kind_ == QkNorm::kAllHeads, Code::kShape, subject(path()),
               "style colwise does not apply to a norm of each head; give it no style");
  const int64_t width = weight_->shape()[0];
  weight_->shard(axis, 0, shards_ ? shards_ : Split::balanced(width, axis.size(), head_dim_));
}

Tensor HeadsNorm::over_ranks(const DTensor& x) const {
  const Tensor& local = x.local();
  const Tensor wide = local.scalar_type() == at::kDouble ? local : local.to(at::kFloat);
  const Tensor squares = owned_squares(wide, *weight_->placement().split(), x.axis().rank());
  const DTensor sum = mine(x.with(squares, Partial{})).redistribute(Fanout{});
  const auto width = static_cast<double>(weight_->shape()[0]);
  const Tensor scale = (sum.local() / width + eps_).rsqrt();
  const Tensor weight = weight_->use().to(wide.scalar_type()) + offset_;
  return (wide * scale * weight).to(local.scalar_type());
}

DTensor HeadsNorm::forward(const DTensor& x, const Context& /*context*/) {
  const Placement& p = x.placement();
  CLEAVE_CHECK(p.is_whole() || p.is_shard(2), Code::kShape, subject(path()),
               "the norm needs every token and whole heads; it got ", p.describe(), " made by ",
               x.maker(), "; give that module the style colwise");
  if (kind_ == QkNorm::kEachHead) {
    weight_->used_in(x);
    const Tensor heads = x.local().unflatten(-1, {-1, head_dim_});
    return x.with(rms_norm(heads, weight_->use(), eps_, offset_).flatten(-2));
  }
  CLEAVE_CHECK(p.is_shard(2) == is_split() || !x.is_split(), Code::kShape, subject(path()),
               "the norm is over all heads and got ", p.describe(), " made by ", x.maker(),
               "; give both the style colwise, or neither");
  if (is_split()) return x.with(over_ranks(x));
  weight_->used_in(x);
  return x.with(rms_norm(x.local(), weight_->use(), eps_, offset_));
}

}  // namespace cleave::inline nn
