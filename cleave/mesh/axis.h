#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/comm/api/group.h"

namespace cleave {

using at::Tensor;

/// Whose elements of one dim each rank holds: for collectives, the width of every rank's block.
using Widths = std::span<const int64_t>;

/// One named dimension of a mesh, seen from one rank: its rank, its size, and the collectives along
/// it. A value that is passed along (backward functions keep it), never looked up.
///
/// The default Axis has one rank, and everything on it is the identity. The functions below run
/// without autograd, take any strides, and return new contiguous tensors; results are the same bits
/// on every rank. `site` names the caller in messages. Errors are Group's, and Error(kShape) for
/// widths, parts or shapes that do not fit.
class Axis {
 public:
  Axis() = default;
  explicit Axis(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  [[nodiscard]] int rank() const { return group_ ? group_->rank() : 0; }
  [[nodiscard]] int size() const { return group_ ? group_->size() : 1; }
  [[nodiscard]] std::string name() const { return group_ ? group_->name() : "one"; }
  /// World ranks along the axis; {0} for the default axis.
  [[nodiscard]] std::vector<int> ranks() const;
  [[nodiscard]] const std::shared_ptr<Group>& group() const { return group_; }
  bool operator==(const Axis& other) const { return group_ == other.group_; }

  /// Returns when all ranks are here.
  void barrier(std::string_view site) const;

  /// Element-wise sum or maximum over the ranks; `t` has the same shape on all.
  [[nodiscard]] Tensor all_reduce(const Tensor& t, std::string_view site,
                                  ReduceOp op = ReduceOp::kSum) const;
  /// Joins the ranks' blocks along `dim`: rank r gives widths[r] of it; in rank order.
  [[nodiscard]] Tensor all_gather(const Tensor& t, int64_t dim, Widths widths,
                                  std::string_view site) const;
  /// Sums whole tensors and keeps this rank's block of widths[rank] along `dim`.
  [[nodiscard]] Tensor reduce_scatter(const Tensor& t, int64_t dim, Widths widths,
                                      std::string_view site) const;
  /// Sends parts[r] to rank r; the result's r-th tensor came from rank r and has shape shapes[r].
  [[nodiscard]] std::vector<Tensor> all_to_all(const std::vector<Tensor>& parts,
                                               const std::vector<std::vector<int64_t>>& shapes,
                                               std::string_view site) const;
  /// Overwrites the contiguous `t` by that of `root`.
  void broadcast_(Tensor& t, int root, std::string_view site) const;

  /// One tensor to another rank of the axis; returns when `t` may be reused. Ranks that send to
  /// each other before they receive do not block.
  void send(const Tensor& t, int to, std::string_view site) const;
  /// The next tensor that rank `from` sent to this one: it has this shape and type.
  [[nodiscard]] Tensor recv(int from, at::IntArrayRef shape, const at::TensorOptions& options,
                            std::string_view site) const;

 private:
  std::shared_ptr<Group> group_;
};

}  // namespace cleave
