#include "cleave/kernels/device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include <ATen/ATen.h>

namespace cleave::inline kernels {
namespace {

std::array<std::atomic<const DeviceKernels*>, at::COMPILE_TIME_MAX_DEVICE_TYPES> of_types{};
thread_local bool meta_is_gpu = false;

}  // namespace

bool takes_ways_of_cpu(const Tensor& t) {
  return t.is_cpu() || (t.is_meta() && !meta_is_gpu);
}

MetaStandsForGpu::MetaStandsForGpu() {
  meta_is_gpu = true;
}

MetaStandsForGpu::~MetaStandsForGpu() {
  meta_is_gpu = false;
}

void set_device_kernels(c10::DeviceType type, const DeviceKernels* kernels) {
  of_types[static_cast<size_t>(type)] = kernels;
}

const DeviceKernels* device_kernels(at::Device device, at::ScalarType type) {
  if (type != at::kFloat && type != at::kBFloat16) return nullptr;
  return of_types[static_cast<size_t>(device.type())].load(std::memory_order_acquire);
}

const DeviceKernels* device_kernels(const Tensor& t) {
  return t.numel() == 0 ? nullptr : device_kernels(t.device(), t.scalar_type());
}

std::optional<ShardPlace> shard_place(at::IntArrayRef shape, int64_t dim,
                                      const std::vector<Range>& ranges, uint64_t first) {
  if (ranges.size() > ShardPlace::kMostRanges) return std::nullopt;
  ShardPlace place{.first = first, .held = 0, .num_pieces = 0, .pieces = {}};
  if (!shape.empty()) {
    place.whole = shape[static_cast<size_t>(dim)];
    place.inner = c10::multiply_integers(shape.slice(static_cast<size_t>(dim) + 1));
  }
  for (const Range& r : ranges) {
    place.pieces[place.num_pieces++] = {.begin = r.begin, .place = place.held};
    place.held += r.size();
  }
  return place;
}

std::vector<double> l2_norms(const DeviceKernels& kernels, const std::vector<Tensor>& tensors) {
  if (tensors.empty()) return {};
  std::vector<Tensor> kept;
  std::vector<SquaresOf> squares(tensors.size());
  int64_t num_parts = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = kept.emplace_back(tensors[i].contiguous());
    squares[i].data = t.const_data_ptr();
    squares[i].count = t.numel();
    squares[i].is_bf16 = t.scalar_type() == at::kBFloat16;
    num_parts += (t.numel() + kListPart - 1) / kListPart;
  }
  const auto options = tensors[0].options().dtype(at::kDouble);
  const Tensor parts = at::empty({num_parts}, options);
  const Tensor sums = at::empty({std::ssize(tensors)}, options);
  kernels.sums_of_squares(squares, parts.mutable_data_ptr<double>(),
                          sums.mutable_data_ptr<double>());
  const Tensor norms = sums.sqrt().cpu();
  const auto* begin = norms.const_data_ptr<double>();
  return {begin, begin + norms.numel()};
}

}  // namespace cleave::inline kernels
