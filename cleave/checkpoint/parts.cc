#include "cleave/checkpoint/parts.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace cleave {

std::vector<Slice> held_slices(const Parameter& parameter) {
  if (!parameter.is_split()) return {};
  return {{parameter.split_dim(), parameter.ranges()}};
}

OwnedPart owned_part(const Parameter& parameter, const Tensor& local, at::ScalarType dtype) {
  OwnedPart part;
  const std::vector<Range> owned = parameter.owned();
  const int64_t dim = parameter.split_dim();
  if (owned.empty()) return part;
  Tensor values = local.detach();
  if (parameter.is_split()) {
    // Of the ranges held, side by side in `local`, those that are owned.
    std::vector<Tensor> pieces;
    int64_t at = 0;
    for (const Range& held : parameter.ranges()) {
      for (const Range& own : owned) {
        const int64_t begin = std::max(held.begin, own.begin);
        const int64_t end = std::min(held.end, own.end);
        if (begin < end) {
          pieces.push_back(values.narrow(dim, at + begin - held.begin, end - begin));
        }
      }
      at += held.size();
    }
    values = pieces.size() == 1 ? pieces[0] : at::cat(pieces, dim);
    part.slices = {{dim, owned}};
  }
  part.values = values.to(at::kCPU, dtype).contiguous();
  return part;
}

std::span<const std::byte> bytes_of(const Tensor& t) {
  return {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
}

std::span<std::byte> mutable_bytes_of(Tensor& t) {
  return {static_cast<std::byte*>(t.mutable_data_ptr()), t.nbytes()};
}

}  // namespace cleave
