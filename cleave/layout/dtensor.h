#pragma once
#include <functional>
#include <initializer_list>
#include <string>

#include <ATen/core/Tensor.h>

#include "cleave/layout/placement.h"
#include "cleave/mesh/axis.h"

namespace cleave::inline layout {

/// Interned name of the layer that made a value, for messages. Lives as long as the process.
const std::string* maker_name(const std::string& name);

/// A distributed tensor: this rank's local part, and the placement of the whole on an axis.
///
/// The placement also defines the gradient (layout/placement.h), so each conversion has exactly one
/// correct backward. On an axis of one rank every conversion is the identity.
class DTensor {
 public:
  DTensor() = default;
  /// `local` is this rank's part under `placement`. Throws Error(kShape) when its size on the
  /// sharded dim differs from the split's, Error(kUsage) for a Shard without a split.
  DTensor(Tensor local, Axis axis, Placement placement, const std::string* maker = nullptr);

  /// The constructor under PyTorch's name.
  static DTensor from_local(Tensor local, const Axis& axis, Placement placement) {
    return {std::move(local), axis, placement};
  }
  /// This rank's part of a tensor that is whole on every rank. No communication forward. Throws
  /// Error(kShape) for Partial and Fanout.
  static DTensor distribute(const Tensor& whole, const Axis& axis, Placement placement);

  [[nodiscard]] const Tensor& local() const { return local_; }
  [[nodiscard]] const Axis& axis() const { return axis_; }
  [[nodiscard]] const Placement& placement() const { return placement_; }
  [[nodiscard]] int64_t dim() const { return local_.dim(); }
  /// Size of a dim of the whole tensor.
  [[nodiscard]] int64_t size(int64_t dim) const;
  [[nodiscard]] bool is_split() const { return axis_.size() > 1; }
  /// Path of the Layer that made it, "the model" for the root, or "the caller".
  [[nodiscard]] std::string maker() const;

  /// The value in another placement, differentiable; see the table in docs/design/layouts.md. The
  /// last conversion is cached, so that q, k and v share one gather.
  /// Throws Error(kShape) for Fanout to Replicate and anything to Partial, naming the maker.
  [[nodiscard]] DTensor redistribute(Placement to) const;
  /// The whole tensor on every rank, differentiable. Throws Error(kShape) for a Fanout that needs a
  /// gradient.
  [[nodiscard]] Tensor full_tensor() const;

  /// `local` on the same axis with another placement and the same maker.
  [[nodiscard]] DTensor with(Tensor local, Placement placement) const;
  /// `local`, an element-wise result, with the same placement.
  [[nodiscard]] DTensor with(Tensor local) const;
  [[nodiscard]] DTensor made_by(const std::string* maker) const;

 private:
  [[nodiscard]] Tensor convert(const Placement& to) const;
  [[nodiscard]] std::string site(const Placement& to) const;

  Tensor local_;
  Axis axis_;
  Placement placement_;
  const std::string* maker_ = nullptr;
  struct Memo {
    Tensor local;
    Placement placement;
    bool grad = false;
  };
  mutable Memo memo_;
};

/// f(a.local(), b.local()) for an element-wise f of two values in the same layout. Throws
/// Error(kShape) naming both makers when the layouts differ, or for Partial (f need not be linear).
DTensor map(const std::function<Tensor(const Tensor&, const Tensor&)>& f, const DTensor& a,
            const DTensor& b);
DTensor map(const std::function<Tensor(const Tensor&)>& f, const DTensor& a);

/// a + b (a residual) in the same layout, also Partial. Throws Error(kShape) naming both makers.
DTensor operator+(const DTensor& a, const DTensor& b);

/// Checks that values are sharded consistently (e.g. q, k and v), so that each rank can compute its
/// share of the work on their local parts: the same kind of placement, the same sharded dim, and
/// the same split or splits of one family. Throws Error(kShape) naming the makers of the two that
/// differ.
void split_work(std::initializer_list<const DTensor*> values);

}  // namespace cleave::inline layout
