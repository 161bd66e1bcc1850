#include "cleave/verify/quantity.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "cleave/layout/shard_geometry.h"
#include "cleave/layout/shards.h"

namespace cleave::verifying {
namespace {

/// The ratio of a distance to its bound; -1 if the distance is 0 or there are no elements.
double share(const Measured& m) {
  if (m.at < 0 || m.distance == 0) return -1;
  return m.distance / m.bound;
}

/// Converts a flat index in a slice to the flat index in the whole tensor.
int64_t place_in_whole(const Quantity& q, at::IntArrayRef local, at::IntArrayRef whole,
                       int64_t flat) {
  std::vector<int64_t> index(local.size());
  for (size_t d = local.size(); d-- > 0;) {
    index[d] = flat % local[d];
    flat /= local[d];
  }
  if (q.placement.is_shard() && q.axis.size() > 1) {
    int64_t& i = index[static_cast<size_t>(q.placement.dim())];
    for (const auto& [held, begin] : pieces_of(q.placement.split()->ranges(q.axis.rank()))) {
      if (i < begin + held.size()) {
        i += held.begin - begin;
        break;
      }
    }
  }
  if (q.rows) index[0] += q.rows->begin;
  int64_t place = 0;
  for (size_t d = 0; d < whole.size(); ++d) place = place * whole[d] + index[d];
  return place;
}

/// The local value in a form to compare with the whole tensor (`is_whole`) or with its slice.
Tensor comparable(const Quantity& q, bool* is_whole) {
  const Placement& p = q.placement;
  *is_whole = true;
  if (q.axis.size() == 1) return q.local;
  const std::string site =
      str("verified ", Comparison{.of = q.of, .subject = q.subject}.quantity());
  const Shards shards{q.axis, p, site};
  const bool is_sum = q.is_gradient ? p.is_fanout() : p.is_partial();
  if (is_sum) return q.axis.all_reduce(q.local, site);
  if (!p.is_shard()) return q.local;
  if (q.is_gradient && p.split()->overlaps()) return shards.gather_parts(q.local);
  *is_whole = false;
  return q.local;
}

Measured furthest(const Tensor& got, const Tensor& want, const Tensor& bound) {
  if (got.numel() == 0) return {};
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor g = got.to(at::kCPU, at::kDouble).reshape(-1);
  const Tensor w = want.to(at::kCPU, at::kDouble).reshape(-1);
  const Tensor b = bound.dim() == 0 ? bound.expand_as(w) : bound.to(at::kCPU).reshape(-1);
  Tensor distance = (g - w).abs();
  distance = distance.masked_fill(distance.isnan(), infinity);
  const Tensor ratio = (distance / b).masked_fill(distance.eq(0), 0);
  const auto at = ratio.argmax().item<int64_t>();
  return {.distance = distance[at].item<double>(),
          .bound = b[at].item<double>(),
          .split = g[at].item<double>(),
          .whole = w[at].item<double>(),
          .at = at};
}

}  // namespace

Quantity quantity_of(Of of, const Parameter& parameter, const Tensor& local) {
  return {.of = of,
          .subject = parameter.name(),
          .local = local.defined() ? local.detach() : Tensor(),
          .axis = parameter.axis(),
          .placement = parameter.placement()};
}

Tensor gradient_of(const Parameter& parameter) {
  const Tensor& leaf = parameter.leaf();
  if (!leaf.defined() || leaf.grad().defined()) return leaf.defined() ? leaf.grad() : Tensor();
  return at::zeros_like(leaf);
}

Measured measure(const Quantity& q, const Wanted& want, const std::string& part) {
  if (!q.local.defined()) return {};
  const at::NoGradGuard no_grad;
  bool is_whole = false;
  const Tensor got = comparable(q, &is_whole);
  const auto here = [&](Tensor t) {
    if (t.dim() == 0) return t;
    if (q.rows) t = t.narrow(0, q.rows->begin, q.rows->size());
    return is_whole ? t : Shards{q.axis, q.placement, "verified"}.slice(t);
  };
  const Tensor value = here(want.value);
  CLEAVE_CHECK(got.sizes() == value.sizes(), Code::kShape, part, ": ",
               Comparison{.of = q.of, .subject = q.subject}.quantity(), " has shape ", got.sizes(),
               " on rank ", q.axis.rank(), " of ", q.axis.name(), "; expected a shard of shape ",
               value.sizes());
  Measured m = furthest(got, value, here(want.bound));
  if (m.at < 0) return m;
  Quantity place = q;
  if (is_whole) place.placement = Replicate{};
  m.at = place_in_whole(place, got.sizes(), want.value.sizes(), m.at);
  return m;
}

std::vector<Measured> worst(const std::vector<Measured>& measured, const Axis& axis) {
  if (axis.size() == 1 || measured.empty()) return measured;
  constexpr int64_t kColumns = 5;
  const auto rows = static_cast<int64_t>(measured.size());
  Tensor own = at::empty({rows, kColumns}, at::kDouble);
  double* to = own.mutable_data_ptr<double>();
  for (const Measured& m : measured) {
    for (const double x : {m.distance, m.bound, m.split, m.whole, static_cast<double>(m.at)})
      *to++ = x;
  }
  const std::vector<int64_t> widths(static_cast<size_t>(axis.size()), rows);
  const Tensor all = axis.all_gather(own, 0, widths, "what differs");
  const double* from = all.const_data_ptr<double>();
  std::vector<Measured> out(measured.size());
  for (int rank = 0; rank < axis.size(); ++rank) {
    for (Measured& m : out) {
      const Measured other{.distance = from[0],
                           .bound = from[1],
                           .split = from[2],
                           .whole = from[3],
                           .at = static_cast<int64_t>(from[4])};
      if (m.at < 0 || share(other) > share(m)) m = other;
      from += kColumns;
    }
  }
  return out;
}

}  // namespace cleave::verifying
