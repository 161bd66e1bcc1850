#pragma once
#include <string>

#include "cleave/layout/placement.h"
#include "cleave/mesh/axis.h"

namespace cleave::inline layout {

/// Conversions between a whole tensor and this rank's slice under one Shard placement, without
/// autograd. Self-contained, so that backward functions can keep it.
struct Shards {
  Axis axis;
  Placement placement;  // a Shard with a split when the functions below are called
  std::string site;     // for messages

  /// This rank's slice of the whole tensor; contiguous.
  [[nodiscard]] Tensor slice(const Tensor& whole) const;
  /// The slice with zeros where another rank is the first holder, so that a sum over the holders of
  /// overlapping shards counts each element once.
  [[nodiscard]] Tensor owned_slice(const Tensor& whole) const;
  /// The whole tensor from all ranks' slices. Where ranges overlap, the first holder's elements
  /// win.
  [[nodiscard]] Tensor gather(const Tensor& local) const;
  /// The whole tensor from slices that hold partial sums where ranges overlap: the sum over
  /// holders.
  [[nodiscard]] Tensor gather_parts(const Tensor& local) const;
  /// This rank's slice of the sum over ranks of whole tensors.
  [[nodiscard]] Tensor sum_and_slice(const Tensor& whole) const;
  /// A tensor of the whole shape with this rank's slice in place and zeros elsewhere.
  [[nodiscard]] Tensor zero_padded(const Tensor& local) const;
};

/// Converts slices under `from` to slices under `to`: by one all-to-all for another dim, by one
/// gather for another split of the same dim. Throws Error(kShape) for overlapping splits of two
/// dims.
Tensor exchange(const Tensor& local, const Shards& from, const Shards& to);
/// Backward of exchange(.., from, to): gradients under `to` become gradients under `from`.
Tensor exchange_gradient(const Tensor& local, const Shards& from, const Shards& to);

}  // namespace cleave::inline layout
