#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/comm/api/group.h"

namespace cleave::inline mesh {

using at::Tensor;

/// Each rank's block size along the sharded dim, in elements, in rank order.
using Widths = std::span<const int64_t>;

/// One named dimension of a mesh, seen from one rank: its rank, its size, and the collectives along
/// it. Copyable value that is passed explicitly; there is no global registry. Backward functions
/// keep copies.
///
/// The default Axis has one rank, and every collective on it is the identity. The functions below
/// run without autograd, accept any strides, and return new contiguous tensors. Results are
/// bit-identical on all ranks. `site` names the caller in messages. They throw what Group throws,
/// and Error(kShape) for inconsistent widths, parts or shapes.
class Axis {
 public:
  Axis() = default;
  explicit Axis(std::shared_ptr<Group> group)
      : group_(std::move(group)), seconds_(std::make_shared<double>(0)) {}

  [[nodiscard]] int rank() const { return group_ ? group_->rank() : 0; }
  [[nodiscard]] int size() const { return group_ ? group_->size() : 1; }
  [[nodiscard]] std::string name() const { return group_ ? group_->name() : "one"; }
  /// World ranks along the axis; {0} for the default axis.
  [[nodiscard]] std::vector<int> ranks() const;
  [[nodiscard]] const std::shared_ptr<Group>& group() const { return group_; }
  /// Seconds that this rank has spent in collectives of this axis and its copies, asynchronous ones
  /// in Work::wait(). Only the rank's own thread adds to it.
  [[nodiscard]] double seconds() const { return seconds_ ? *seconds_ : 0; }
  bool operator==(const Axis& other) const { return group_ == other.group_; }

  /// Whether a device can record the collectives (kernels/recorded_work.h).
  [[nodiscard]] bool can_record() const;

  /// Returns when all ranks have called it.
  void barrier(std::string_view site) const;

  // The next four functions return tensors without a gradient. An argument that needs a gradient is
  // Error(kUsage) on any number of ranks, so that no gradient is lost unnoticed: detach it, or use
  // DTensor::redistribute(), which has a gradient.

  /// Element-wise sum or maximum over the ranks; `t` has the same shape on all.
  [[nodiscard]] Tensor all_reduce(const Tensor& t, std::string_view site,
                                  ReduceOp op = ReduceOp::kSum) const;
  /// Concatenates the ranks' blocks along `dim` in rank order; rank r contributes widths[r].
  [[nodiscard]] Tensor all_gather(const Tensor& t, int64_t dim, Widths widths,
                                  std::string_view site) const;
  /// Sums whole tensors over the ranks and returns this rank's block of widths[rank] along `dim`.
  [[nodiscard]] Tensor reduce_scatter(const Tensor& t, int64_t dim, Widths widths,
                                      std::string_view site) const;
  /// Sends parts[r] to rank r; the result's r-th tensor came from rank r and has shape shapes[r].
  [[nodiscard]] std::vector<Tensor> all_to_all(const std::vector<Tensor>& parts,
                                               const std::vector<std::vector<int64_t>>& shapes,
                                               std::string_view site) const;
  /// Overwrites the contiguous `t` with that of rank `root`.
  void broadcast_(Tensor& t, int root, std::string_view site) const;

  /// From now on messages of device memory between ranks whose numbers follow each other, and
  /// between the last and the first, stay on the devices, if these can send them. Collective.
  void connect_messages() const;
  /// Sends one tensor to rank `to` of the axis; returns when `t` may be reused. Two ranks may both
  /// send before they receive without blocking.
  void send(const Tensor& t, int to, std::string_view site) const;
  /// Receives the next tensor that rank `from` sent to this rank. Shape and type must be the
  /// sender's.
  [[nodiscard]] Tensor recv(int from, at::IntArrayRef shape, const at::TensorOptions& options,
                            std::string_view site) const;

 private:
  friend class WorkStarter;
  std::shared_ptr<Group> group_;
  std::shared_ptr<double> seconds_;  // null for the default axis
};

/// Throws Error(kShape) naming `site` unless there is one width for each rank of the axis.
void check_widths(const Axis& axis, Widths widths, std::string_view site);

/// The shape of `t` with `size` elements in dim `dim`, which is in [0, t.dim()).
std::vector<int64_t> with_dim(const Tensor& t, int64_t dim, int64_t size);

}  // namespace cleave::inline mesh
