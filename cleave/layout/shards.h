#pragma once
#include <string>

#include "cleave/layout/placement.h"
#include "cleave/mesh/axis.h"

namespace cleave {

/// The moves between a whole tensor and this rank's slice under one Shard placement, without
/// autograd. Kept by backward functions, so it owns all it needs.
struct Shards {
  Axis axis;
  Placement placement;  // a Shard with its split, where the functions below are called
  std::string site;     // for messages

  /// This rank's slice of the whole tensor; contiguous.
  [[nodiscard]] Tensor slice(const Tensor& whole) const;
  /// The slice with zeros where another rank is the first holder: so cut, slices that are summed
  /// over their holders count each element once.
  [[nodiscard]] Tensor owned_slice(const Tensor& whole) const;
  /// The whole tensor from every rank's slice. Where ranges overlap, the first holder's elements.
  [[nodiscard]] Tensor gather(const Tensor& local) const;
  /// The whole tensor from slices of which each holder of an element has a part: their sum.
  [[nodiscard]] Tensor gather_parts(const Tensor& local) const;
  /// This rank's slice of the sum over ranks of whole tensors.
  [[nodiscard]] Tensor sum_and_slice(const Tensor& whole) const;
  /// The whole tensor with this rank's slice in place and zeros elsewhere.
  [[nodiscard]] Tensor zero_padded(const Tensor& local) const;
};

/// From slices under `from` to slices under `to`: one all-to-all to another dim, one gather to
/// another split of the same dim. Overlapping splits of two dims are Error(kShape).
Tensor exchange(const Tensor& local, const Shards& from, const Shards& to);
/// What exchange(.., from, to) does to gradients: from slices under `to` to slices under `from`.
Tensor exchange_gradient(const Tensor& local, const Shards& from, const Shards& to);

}  // namespace cleave
