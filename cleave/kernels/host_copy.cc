#include "cleave/kernels/host_copy.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace cleave::inline kernels {

HostCopy::HostCopy(const at::Tensor& t) {
  if (t.is_cpu()) {
    copy_ = t.clone();
    return;
  }
  copy_ = at::empty(t.sizes(), at::device(at::kCPU).dtype(t.scalar_type()).pinned_memory(true));
  copy_.copy_(t, /*non_blocking=*/true);
  end_.emplace(t.device().type());
  end_->record(c10::impl::VirtualGuardImpl(t.device().type()).getStream(t.device()));
}

const at::Tensor& HostCopy::wait() {
  // The copy has already ended if something that was queued after it was waited for.
  if (end_ && !end_->query()) end_->synchronize();
  end_.reset();
  return copy_;
}

}  // namespace cleave::inline kernels
