#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

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

  /// This rank's part.
  [[nodiscard]] const Tensor& local() const {
    if (sum_) compute_sum();
    return local_;
  }
  [[nodiscard]] const Axis& axis() const { return axis_; }
  [[nodiscard]] const Placement& placement() const { return placement_; }
  [[nodiscard]] int64_t dim() const { return like().dim(); }
  [[nodiscard]] bool is_floating_point() const { return like().is_floating_point(); }
  /// Size of a dim of the whole tensor.
  [[nodiscard]] int64_t size(int64_t dim) const;
  [[nodiscard]] bool is_split() const { return axis_.size() > 1; }
  /// Path of the Layer that made it, "the model" for the root, or "the caller".
  [[nodiscard]] std::string maker() const;

  /// The value in another placement, differentiable; see the table in docs/design/layouts.md. The
  /// last conversion is cached until the value changes in place, on all ranks, so that q, k and v
  /// share one gather.
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

  /// The local terms of an operator+ whose sum is not computed yet, if the grad mode is that of
  /// operator+; otherwise two undefined tensors. A function that needs the sum and something
  /// computed from it, such as a norm, can compute both in one pass and then call set_sum().
  [[nodiscard]] std::pair<Tensor, Tensor> open_sum() const;
  void set_sum(Tensor sum) const;

 private:
  friend DTensor operator+(const DTensor& a, const DTensor& b);
  /// A sum, which all copies of a DTensor share.
  struct Sum {
    Tensor a, b;  // undefined once it is computed
    std::array<int64_t, 2> versions{};
    bool grad = false;
    Tensor value;
  };
  void compute_sum() const;
  /// A tensor with the type and the sizes of the local part.
  [[nodiscard]] const Tensor& like() const {
    if (!sum_) return local_;
    return sum_->value.defined() ? sum_->value : sum_->a;
  }
  [[nodiscard]] Tensor convert(const Placement& to) const;
  [[nodiscard]] std::string site(const Placement& to) const;

  mutable Tensor local_;                // undefined while sum_ is set
  mutable std::shared_ptr<Sum> sum_{};  // until local() is called
  Axis axis_;
  Placement placement_;
  const std::string* maker_ = nullptr;
  struct Memo {
    Tensor local;
    Placement placement;
    bool grad = false;
    int64_t version = 0;  // of the value's elements then
  };
  mutable Memo memo_;
};

/// f(a.local(), b.local()) for an element-wise f of two values in the same layout. Throws
/// Error(kShape) naming both makers when the layouts differ, or for Partial (f need not be linear).
DTensor map(const std::function<Tensor(const Tensor&, const Tensor&)>& f, const DTensor& a,
            const DTensor& b);
DTensor map(const std::function<Tensor(const Tensor&)>& f, const DTensor& a);

/// a + b (a residual) in the same layout, also Partial. Throws Error(kShape) naming both makers.
/// The sum is computed by the norm that follows, or at the first local(); throws Error(kUsage) then
/// if a term has been changed in place.
DTensor operator+(const DTensor& a, const DTensor& b);

/// Checks that values are sharded consistently (e.g. q, k and v), so that each rank can compute its
/// share of the work on their local parts: the same kind of placement, the same sharded dim, and
/// the same split or splits of one family. Throws Error(kShape) naming the makers of the two that
/// differ.
void split_work(std::initializer_list<const DTensor*> values);

}  // namespace cleave::inline layout
