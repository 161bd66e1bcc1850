#include "cleave/mesh/work.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/comm/api/async_group.h"
#include "cleave/comm/api/calling_thread.h"
#include "cleave/mesh/axis.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/runtime/step_recorder.h"
#include "cleave/torch_internals/backward_thread.h"

namespace cleave::inline mesh {

/// Starts a collective from `in` to `out`, asynchronously if the group supports it, and makes its
/// Work.
class WorkStarter {
 public:
  WorkStarter(const Axis& axis, const Tensor& in, Tensor out, std::string_view site)
      : axis_(axis), site_(site), shape_(in.sizes().vec()) {
    work_.in_ = in;
    work_.out_ = std::move(out);
  }

  /// For one rank: the result already exists.
  Work done() { return std::move(work_); }

  /// Calls collective(group, from, to, call), possibly later and on another thread; `collective` is
  /// copied. A recording shows it as `op`.
  template <class Collective>
  Work start(std::string_view op, const Collective& collective) {
    const auto group = axis_.group();
    StepRecorder* const recorder = StepRecorder::active();
    const BegunCall begun = begun_call(op);
    // `run` holds everything that it uses, but calls no tensor function: the profiler would count
    // that on the helper thread.
    const auto run = [group, collective, in = work_.in_, out = work_.out_,
                      from = work_.in_.const_data_ptr(), to = work_.out_.mutable_data_ptr(),
                      site = site_, shape = shape_] {
      collective(*group, from, to, Call{.site = site, .shape = shape});
    };
    AsyncGroup* const async = group->async();
    const bool is_on_device =
        async != nullptr && (async->is_on_device(work_.in_.const_data_ptr()) ||
                             async->is_on_device(work_.out_.const_data_ptr()));
    if (async != nullptr && !is_on_device) {
      if (recorder != nullptr) {
        work_.recorded_ = recorder->start_helper(*group, begun);
        work_.done_ = async->start([run, recorded = work_.recorded_] { recorded->run(run); });
      } else {
        work_.done_ = async->start(run);
      }
      work_.group_ = group;
      work_.seconds_ = axis_.seconds_;
    } else {
      const ForBlockedThread scope(is_backward_thread());
      if (async != nullptr) async->await_started();
      const double begin = recorder ? recorder->begin_call(*group, begun) : monotonic_s();
      if (is_on_device) {
        work_.done_ = async->start_on_device(run);
        work_.group_ = group;
        work_.seconds_ = axis_.seconds_;
      } else {
        run();
      }
      *axis_.seconds_ += (recorder ? recorder->end() : monotonic_s()) - begin;
    }
    return std::move(work_);
  }

 private:
  [[nodiscard]] BegunCall begun_call(std::string_view op) const {
    const int64_t in = work_.in_.numel(), out = work_.out_.numel(), peers = axis_.size() - 1;
    const int64_t sent = op == "all_reduce"   ? 2 * (in * peers / axis_.size())
                         : op == "all_gather" ? in * peers
                                              : in - out;
    const auto item = static_cast<int64_t>(work_.in_.element_size());
    return {.op = op, .site = site_, .bytes = std::max(in, out) * item, .sent = sent * item};
  }

  const Axis& axis_;
  std::string site_;
  std::vector<int64_t> shape_;
  Work work_;
};

namespace {

std::vector<int64_t> copy_of(Widths widths) {
  return {widths.begin(), widths.end()};
}

void check_flat(const Tensor& t, int64_t numel, std::string_view site) {
  CLEAVE_CHECK(t.dim() == 1 && t.is_contiguous() && t.numel() == numel, Code::kShape, site,
               ": got a tensor of sizes ", t.sizes(), "; expected one contiguous dim of ", numel,
               " elements");
}

}  // namespace

Tensor Work::wait() {
  if (group_) {
    StepRecorder* const recorder = recorded_ ? StepRecorder::active() : nullptr;
    const double begin = recorder ? recorder->begin_wait(*recorded_) : monotonic_s();
    group_->async()->await(done_);
    *seconds_ += (recorder ? recorder->end() : monotonic_s()) - begin;
  }
  in_ = Tensor();
  return std::exchange(out_, {});
}

Work start_all_reduce(const Axis& axis, const Tensor& t, std::string_view site) {
  CLEAVE_CHECK(t.is_contiguous(), Code::kUsage, site, ": got a tensor of strides ", t.strides(),
               "; expected a contiguous one");
  WorkStarter starter(axis, t, t, site);
  if (axis.size() == 1) return starter.done();
  return starter.start("all_reduce",
                       [count = t.numel(), type = dtype_of(t.scalar_type())](
                           Group& group, const void* in, void* out, const Call& call) {
                         group.all_reduce(in, out, count, type, ReduceOp::kSum, call);
                       });
}

Work start_all_gather(const Axis& axis, const Tensor& t, Widths widths, std::string_view site) {
  check_widths(axis, widths, site);
  check_flat(t, widths[static_cast<size_t>(axis.rank())], site);
  if (axis.size() == 1) return WorkStarter(axis, t, t, site).done();
  const int64_t whole = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  return WorkStarter(axis, t, at::empty({whole}, t.options()), site)
      .start("all_gather", [widths = copy_of(widths), whole, type = dtype_of(t.scalar_type())](
                               Group& group, const void* in, void* out, const Call& call) {
        group.all_gather(in, out, 1, widths, type, {.site = call.site, .shape = {&whole, 1}});
      });
}

Work start_reduce_scatter(const Axis& axis, const Tensor& t, Widths widths, std::string_view site) {
  check_widths(axis, widths, site);
  check_flat(t, std::accumulate(widths.begin(), widths.end(), int64_t{0}), site);
  if (axis.size() == 1) return WorkStarter(axis, t, t, site).done();
  const int64_t own = widths[static_cast<size_t>(axis.rank())];
  return WorkStarter(axis, t, at::empty({own}, t.options()), site)
      .start("reduce_scatter", [widths = copy_of(widths), type = dtype_of(t.scalar_type())](
                                   Group& group, const void* in, void* out, const Call& call) {
        group.reduce_scatter(in, out, 1, widths, type, call);
      });
}

}  // namespace cleave::inline mesh
