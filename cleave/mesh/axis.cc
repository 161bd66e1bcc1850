#include "cleave/mesh/axis.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "cleave/base/clock.h"
#include "cleave/comm/api/async_group.h"
#include "cleave/comm/api/calling_thread.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/runtime/step_recorder.h"
#include "cleave/torch_internals/backward_thread.h"
#include "cleave/torch_internals/node.h"

namespace cleave::inline mesh {
namespace {

/// A tensor viewed as [rows, size(dim), inner].
struct Block {
  int64_t rows = 1, inner = 1;
};

Block block_of(const Tensor& t, int64_t dim) {
  Block b;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (d < dim) b.rows *= t.size(d);
    if (d > dim) b.inner *= t.size(d);
  }
  return b;
}

std::vector<int64_t> scaled(Widths widths, int64_t factor) {
  std::vector<int64_t> out(widths.begin(), widths.end());
  for (int64_t& w : out) w *= factor;
  return out;
}

/// A synchronous call runs after the asynchronous ones that the rank started before.
void await_started(Group& group) {
  if (AsyncGroup* const async = group.async()) async->await_started();
}

/// Scope of a synchronous call; adds its duration to `seconds`, and records it.
class TimedCall {
 public:
  TimedCall(Group& group, double& seconds, const BegunCall& call) : seconds_(seconds) {
    await_started(group);
    start_ = recorder_ != nullptr ? recorder_->begin_call(group, call) : monotonic_s();
    if (record_.isActive()) record_.before("cleave::comm");
  }
  ~TimedCall() {
    const double end = recorder_ != nullptr ? recorder_->end() : monotonic_s();
    seconds_ += end - start_;
  }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;

 private:
  double& seconds_;
  ForBlockedThread scope_{is_backward_thread()};
  StepRecorder* recorder_ = StepRecorder::active();
  double start_ = 0;
  at::RecordFunction record_{at::RecordScope::USER_SCOPE};
};

/// Bytes of `count` elements of the tensor's type.
int64_t bytes_of(const Tensor& t, int64_t count) {
  return count * static_cast<int64_t>(t.element_size());
}

/// Checked on one rank too, so that what runs there runs on more ranks.
void check_without_grad(const Tensor& t, std::string_view call, std::string_view site) {
  CLEAVE_CHECK(!needs_grad(t), Code::kUsage, site, ": ", call,
               " has no gradient, and its argument needs one; give it t.detach(), or use "
               "DTensor::redistribute(), which has one");
}

void check_held(int64_t held, int64_t wanted, int64_t dim, std::string_view site) {
  CLEAVE_CHECK(held == wanted, Code::kShape, site, ": dim ", dim, " has ", held,
               " elements; the widths give it ", wanted);
}

}  // namespace

std::vector<int64_t> with_dim(const Tensor& t, int64_t dim, int64_t size) {
  auto shape = t.sizes().vec();
  shape[static_cast<size_t>(dim)] = size;
  return shape;
}

void check_widths(const Axis& axis, Widths widths, std::string_view site) {
  CLEAVE_CHECK(widths.size() == static_cast<size_t>(axis.size()), Code::kShape, site, ": ",
               widths.size(), " widths for the ", axis.size(), " ranks of axis ", axis.name());
}

std::vector<int> Axis::ranks() const {
  return group_ ? group_->ranks() : std::vector<int>{0};
}

bool Axis::can_record() const {
  if (size() == 1) return true;
  const AsyncGroup* const async = group_->async();
  return async != nullptr && async->can_record();
}

void Axis::barrier(std::string_view site) const {
  if (size() == 1) return;
  const ForBlockedThread scope(is_backward_thread());
  await_started(*group_);
  group_->barrier({.site = site, .shape = {}});
}

Tensor Axis::all_reduce(const Tensor& t, std::string_view site, ReduceOp op) const {
  check_without_grad(t, "all_reduce", site);
  if (size() == 1) return t;
  const at::NoGradGuard no_grad;
  const Tensor in = t.contiguous();
  Tensor out = at::empty_like(in);
  const TimedCall own(*group_, *seconds_,
                      {.op = "all_reduce",
                       .site = site,
                       .bytes = bytes_of(in, in.numel()),
                       .sent = 2 * bytes_of(in, in.numel() * (size() - 1) / size())});
  group_->all_reduce(in.const_data_ptr(), out.mutable_data_ptr(), in.numel(),
                     dtype_of(in.scalar_type()), op, {.site = site, .shape = in.sizes()});
  return out;
}

Tensor Axis::all_gather(const Tensor& t, int64_t dim, Widths widths, std::string_view site) const {
  check_without_grad(t, "all_gather", site);
  if (size() == 1) return t;
  check_widths(*this, widths, site);
  check_held(t.size(dim), widths[static_cast<size_t>(rank())], dim, site);
  const at::NoGradGuard no_grad;
  const Tensor in = t.contiguous();
  const Block block = block_of(in, dim);
  const auto shape = with_dim(in, dim, std::accumulate(widths.begin(), widths.end(), int64_t{0}));
  Tensor out = at::empty(shape, in.options());
  const TimedCall own(*group_, *seconds_,
                      {.op = "all_gather",
                       .site = site,
                       .bytes = bytes_of(out, out.numel()),
                       .sent = bytes_of(in, in.numel() * (size() - 1))});
  group_->all_gather(in.const_data_ptr(), out.mutable_data_ptr(), block.rows,
                     scaled(widths, block.inner), dtype_of(in.scalar_type()),
                     {.site = site, .shape = shape});
  return out;
}

Tensor Axis::reduce_scatter(const Tensor& t, int64_t dim, Widths widths,
                            std::string_view site) const {
  check_without_grad(t, "reduce_scatter", site);
  if (size() == 1) return t;
  check_widths(*this, widths, site);
  check_held(t.size(dim), std::accumulate(widths.begin(), widths.end(), int64_t{0}), dim, site);
  const at::NoGradGuard no_grad;
  const Tensor in = t.contiguous();
  const Block block = block_of(in, dim);
  Tensor out = at::empty(with_dim(in, dim, widths[static_cast<size_t>(rank())]), in.options());
  const TimedCall own(*group_, *seconds_,
                      {.op = "reduce_scatter",
                       .site = site,
                       .bytes = bytes_of(in, in.numel()),
                       .sent = bytes_of(in, in.numel() - out.numel())});
  group_->reduce_scatter(in.const_data_ptr(), out.mutable_data_ptr(), block.rows,
                         scaled(widths, block.inner), dtype_of(in.scalar_type()),
                         {.site = site, .shape = in.sizes()});
  return out;
}

std::vector<Tensor> Axis::all_to_all(const std::vector<Tensor>& parts,
                                     const std::vector<std::vector<int64_t>>& shapes,
                                     std::string_view site) const {
  for (const Tensor& part : parts) check_without_grad(part, "all_to_all", site);
  if (size() == 1) return parts;
  const auto num_ranks = static_cast<size_t>(size());
  CLEAVE_CHECK(parts.size() == num_ranks && shapes.size() == num_ranks, Code::kShape, site, ": ",
               parts.size(), " parts and ", shapes.size(), " shapes for the ", num_ranks,
               " ranks of axis ", name());
  const at::NoGradGuard no_grad;
  std::vector<Tensor> flat;
  std::vector<int64_t> send, recv;
  for (const Tensor& part : parts) {
    flat.push_back(part.reshape(-1));
    send.push_back(part.numel());
  }
  for (const auto& shape : shapes) recv.push_back(c10::multiply_integers(shape));
  const Tensor in = at::cat(flat);
  // Never empty: the group chooses the transport by the memory's device, and all ranks must choose
  // the same.
  const auto num_received = std::accumulate(recv.begin(), recv.end(), int64_t{0});
  const Tensor out = at::empty({std::max<int64_t>(num_received, 1)}, in.options());
  const int64_t num_sent = in.numel() - send[static_cast<size_t>(rank())];
  const TimedCall own(*group_, *seconds_,
                      {.op = "all_to_all",
                       .site = site,
                       .bytes = bytes_of(in, in.numel()),
                       .sent = bytes_of(in, num_sent)});
  group_->all_to_all(in.const_data_ptr(), send, out.mutable_data_ptr(), recv,
                     dtype_of(in.scalar_type()), {.site = site, .shape = {}});
  std::vector<Tensor> result;
  int64_t begin = 0;
  for (size_t r = 0; r < shapes.size(); ++r) {
    result.push_back(out.narrow(0, begin, recv[r]).view(shapes[r]));
    begin += recv[r];
  }
  return result;
}

void Axis::broadcast_(Tensor& t, int root, std::string_view site) const {
  if (size() == 1) return;
  CLEAVE_CHECK(t.is_contiguous(), Code::kUsage, "broadcast_ needs a contiguous tensor; called by ",
               site);
  const TimedCall own(*group_, *seconds_,
                      {.op = "broadcast",
                       .site = site,
                       .bytes = bytes_of(t, t.numel()),
                       .sent = rank() == root ? bytes_of(t, t.numel() * (size() - 1)) : 0});
  group_->broadcast(t.mutable_data_ptr(), t.numel(), dtype_of(t.scalar_type()), root,
                    {.site = site, .shape = t.sizes()});
}

void Axis::connect_messages() const {
  if (AsyncGroup* const async = size() > 1 ? group_->async() : nullptr) async->connect_messages();
}

void Axis::send(const Tensor& t, int to, std::string_view site) const {
  CLEAVE_CHECK(group_ != nullptr, Code::kUsage, site,
               ": send needs an axis of two or more ranks, and this axis has one");
  const Tensor out = t.contiguous();
  const int64_t bytes = bytes_of(out, out.numel());
  const TimedCall own(*group_, *seconds_,
                      {.op = "send", .site = site, .bytes = bytes, .sent = bytes, .peer = to});
  group_->send(out.const_data_ptr(), out.numel(), dtype_of(out.scalar_type()), to,
               {.site = site, .shape = out.sizes()});
}

Tensor Axis::recv(int from, at::IntArrayRef shape, const at::TensorOptions& options,
                  std::string_view site) const {
  CLEAVE_CHECK(group_ != nullptr, Code::kUsage, site,
               ": recv needs an axis of two or more ranks, and this axis has one");
  Tensor in = at::empty(shape, options);
  const TimedCall own(
      *group_, *seconds_,
      {.op = "recv", .site = site, .bytes = bytes_of(in, in.numel()), .peer = from});
  group_->recv(in.mutable_data_ptr(), in.numel(), dtype_of(in.scalar_type()), from,
               {.site = site, .shape = shape});
  return in;
}

}  // namespace cleave::inline mesh
