#include "cleave/checkpoint/parts.h"

#include <ATen/ATen.h>

#include "cleave/layout/shard_geometry.h"

namespace cleave::inline checkpoint {

namespace {

/// Boxes of the local part that make up the leaf.
std::vector<Box> held_boxes(const Parameter& parameter) {
  const auto shape = parameter.local_shape();
  if (parameter.is_flat()) return flat_boxes(shape, parameter.flat_range());
  Box all;
  for (const int64_t size : shape) all.push_back({0, size});
  return {all};
}

/// A range of the local part's sharded dim, as ranges of the whole.
std::vector<Range> in_whole(const Parameter& parameter, Range local) {
  std::vector<Range> whole;
  for (const auto& [held, at] : pieces_of(parameter.ranges())) {
    const Range part = common(local, {at, at + held.size()});
    const int64_t shift = held.begin - at;
    if (part.size() > 0) whole.push_back({part.begin + shift, part.end + shift});
  }
  return whole;
}

/// A box of the local part as slices of the whole.
std::vector<Slice> slices_of(const Parameter& parameter, const Box& box) {
  std::vector<Slice> slices;
  for (size_t d = 0; d < box.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (parameter.is_split() && dim == parameter.split_dim()) {
      slices.push_back({dim, in_whole(parameter, box[d])});
    } else if (box[d] != Range{0, parameter.shape()[d]}) {
      slices.push_back({dim, {box[d]}});
    }
  }
  return slices;
}

/// Reduces a block to the ranges of the sharded dim that this rank owns.
void keep_owned(const Parameter& parameter, Slice& slice, Tensor& values) {
  std::vector<Tensor> pieces;
  std::vector<Range> kept;
  for (const auto& [range, local] : pieces_of(slice.ranges, parameter.owned())) {
    pieces.push_back(values.narrow(slice.dim, local, range.size()));
    kept.push_back(range);
  }
  slice.ranges = std::move(kept);
  values = pieces.empty() ? Tensor() : pieces.size() == 1 ? pieces[0] : at::cat(pieces, slice.dim);
}

}  // namespace

std::vector<std::vector<Slice>> held_blocks(const Parameter& parameter) {
  std::vector<std::vector<Slice>> blocks;
  for (const Box& box : held_boxes(parameter)) blocks.push_back(slices_of(parameter, box));
  return blocks;
}

std::vector<OwnedPart> owned_parts(const Parameter& parameter, const Tensor& local,
                                   at::ScalarType dtype) {
  std::vector<OwnedPart> parts;
  if (parameter.owned().empty()) return parts;
  const Tensor flat = local.detach().flatten();
  int64_t at = 0;
  for (const Box& box : held_boxes(parameter)) {
    std::vector<int64_t> sizes;
    for (const Range& range : box) sizes.push_back(range.size());
    const int64_t count = c10::multiply_integers(sizes);
    OwnedPart part{.slices = slices_of(parameter, box),
                   .values = flat.narrow(0, at, count).view(sizes)};
    at += count;
    for (Slice& slice : part.slices) {
      const bool is_sharded_dim = parameter.is_split() && slice.dim == parameter.split_dim();
      if (is_sharded_dim && part.values.defined()) keep_owned(parameter, slice, part.values);
    }
    if (!part.values.defined()) continue;
    part.values = part.values.to(at::kCPU, dtype).contiguous();
    parts.push_back(std::move(part));
  }
  return parts;
}

std::span<const std::byte> bytes_of(const Tensor& t) {
  return {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
}

std::span<std::byte> mutable_bytes_of(Tensor& t) {
  return {static_cast<std::byte*>(t.mutable_data_ptr()), t.nbytes()};
}

}  // namespace cleave::inline checkpoint
