#pragma once
#include <future>
#include <memory>
#include <string_view>

#include "cleave/mesh/axis.h"
#include "cleave/runtime/step_recorder.h"

namespace cleave::inline mesh {

/// Handle of an asynchronous collective (PyTorch's Work). A helper thread of the axis runs it;
/// wait() returns the result.
///
/// Results are bit-identical to those of Axis's collectives. Collectives of one axis, asynchronous
/// or not, run in the order in which the rank issues them, which must be the same on all ranks.
/// Device memory (the device has its own queue) and axes without async support (dry ones) run the
/// collective immediately.
class Work {
 public:
  Work() = default;
  /// Waits for the end and returns the result; rethrows the collective's error. Call it once.
  [[nodiscard]] Tensor wait();
  /// Whether a result is still to be taken by wait().
  [[nodiscard]] bool is_pending() const { return out_.defined(); }

 private:
  friend class WorkStarter;
  std::shared_ptr<Group> group_;     // null if the collective has run
  std::shared_ptr<double> seconds_;  // of the axis; the wait adds to them
  std::shared_future<void> done_;
  Tensor in_, out_;                       // freed on the rank's thread
  std::shared_ptr<HelperCall> recorded_;  // null unless the step is recorded
};

/// Asynchronous Axis::all_reduce (sum), in place: `t` must be contiguous and becomes the result.
[[nodiscard]] Work start_all_reduce(const Axis& axis, const Tensor& t, std::string_view site);
/// Asynchronous Axis::all_gather and Axis::reduce_scatter of a contiguous one-dim tensor.
[[nodiscard]] Work start_all_gather(const Axis& axis, const Tensor& t, Widths widths,
                                    std::string_view site);
[[nodiscard]] Work start_reduce_scatter(const Axis& axis, const Tensor& t, Widths widths,
                                        std::string_view site);

}  // namespace cleave::inline mesh
