#pragma once
#include <future>
#include <memory>
#include <string_view>

#include "cleave/mesh/axis.h"

namespace cleave {

/// A collective under way: it goes on beside the rank's own thread until its result is asked for.
///
/// Results are the same bits as those of the collectives of Axis. Calls of one axis, started or
/// not, are made in the order in which the rank gives them, which is the same on all ranks. The
/// memory of a device, which has a queue of its own, and axes that can only be called directly (a
/// dry one) are called at once.
class Work {
 public:
  Work() = default;
  /// Awaits the end and gives the result; throws here what the collective threw. Once.
  [[nodiscard]] Tensor wait();
  /// Whether there is a result to be asked for.
  [[nodiscard]] bool is_under_way() const { return out_.defined(); }

 private:
  friend class WorkStarter;
  std::shared_ptr<Group> group_;  // whose seconds the wait counts for; nullptr when it was called
  std::shared_future<void> done_;
  Tensor in_, out_;  // freed by the rank's own thread
};

/// Axis::all_reduce with a sum, in place: `t` is contiguous, and the result.
[[nodiscard]] Work start_all_reduce(const Axis& axis, const Tensor& t, std::string_view site);
/// Axis::all_gather and Axis::reduce_scatter along dim 0 of a contiguous tensor of one dim.
[[nodiscard]] Work start_all_gather(const Axis& axis, const Tensor& t, Widths widths,
                                    std::string_view site);
[[nodiscard]] Work start_reduce_scatter(const Axis& axis, const Tensor& t, Widths widths,
                                        std::string_view site);

}  // namespace cleave
