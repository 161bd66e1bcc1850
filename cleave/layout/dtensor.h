#pragma once
#include <functional>
#include <initializer_list>
#include <string>

#include <ATen/core/Tensor.h>

#include "cleave/layout/placement.h"
#include "cleave/mesh/axis.h"

namespace cleave {

/// Who made a value, for messages. Interned: lives for the process.
const std::string* maker_name(const std::string& name);

/// A tensor of which each rank of an axis holds its part, with the layout that says which.
///
/// The layout also says what the gradient is (layout/placement.h), so backward follows from each
/// conversion and is never chosen by hand. On an axis of one rank every conversion is the identity.
class DTensor {
 public:
  DTensor() = default;
  /// This rank's part `local`, laid out as `placement` says. Throws Error(kShape) when its size on
  /// a sharded dim is not what the split gives this rank.
  DTensor(Tensor local, Axis axis, Placement placement, const std::string* maker = nullptr);

  /// The same as the constructor, under the name that PyTorch's users know.
  static DTensor from_local(Tensor local, const Axis& axis, Placement placement) {
    return {std::move(local), axis, placement};
  }
  /// Keeps this rank's part of a tensor that is whole on every rank. No traffic. Throws
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

  /// The value in another layout, differentiable; the table in docs/design/layouts.md. The last
  /// conversion is remembered, so that q, k and v share one gather.
  /// Throws Error(kShape) for Fanout to Replicate and anything to Partial, naming the maker.
  [[nodiscard]] DTensor redistribute(Placement to) const;
  /// The whole tensor on every rank, differentiable. Throws Error(kShape) for a Fanout that needs a
  /// gradient.
  [[nodiscard]] Tensor full_tensor() const;

  /// Another local value on the same axis.
  [[nodiscard]] DTensor with(Tensor local, Placement placement) const;
  /// The same layout around an element-wise result.
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

/// f(a.local(), b.local()) for an element-wise f of two values in one layout. Throws Error(kShape)
/// naming both makers when the layouts differ, or when they are partial sums (f need not be
/// linear).
DTensor map(const std::function<Tensor(const Tensor&, const Tensor&)>& f, const DTensor& a,
            const DTensor& b);
DTensor map(const std::function<Tensor(const Tensor&)>& f, const DTensor& a);

/// a + b in one layout, partial sums too: the residual. Throws Error(kShape) naming both makers.
DTensor operator+(const DTensor& a, const DTensor& b);

/// Checks that values were cut together, so that work on their local parts is that rank's share of
/// the whole work: the same kind of layout, the same sharded dim, and one split or one family of
/// splits. Throws Error(kShape) naming the makers of the two that differ.
void split_work(std::initializer_list<const DTensor*> values);

}  // namespace cleave
