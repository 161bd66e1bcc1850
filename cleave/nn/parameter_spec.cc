#include "cleave/nn/parameter_spec.h"

#include <algorithm>
#include <span>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cleave/base/philox.h"
#include "cleave/layout/shards.h"

namespace cleave::inline nn {

int64_t ParameterSpec::numel() const {
  return c10::multiply_integers(shape_);
}

void ParameterSharding::replicate(const Axis& axis) {
  if (!is_split()) axis_ = axis;
}

std::vector<int64_t> ParameterSharding::local_shape() const {
  auto local = shape();
  if (is_split()) {
    local[static_cast<size_t>(placement_.dim())] = placement_.split()->width(axis_.rank());
  }
  return local;
}

std::vector<Range> ParameterSharding::ranges() const {
  if (is_split()) return placement_.split()->ranges(axis_.rank());
  return {{0, shape().empty() ? 1 : shape()[0]}};
}

std::vector<Range> ParameterSharding::owned() const {
  if (ownership_ != Ownership::kOwned) return {};
  if (is_split()) return placement_.split()->owned(axis_.rank());
  if (axis_.rank() != 0) return {};
  return ranges();
}

Range ParameterSharding::flat_range() const {
  return flat_.value_or(Range{0, c10::multiply_integers(local_shape())});
}

std::vector<int64_t> ParameterSharding::leaf_shape() const {
  return is_flat() ? std::vector<int64_t>{flat_->size()} : local_shape();
}

std::vector<int64_t> ParameterSharding::stored_shape() const {
  std::vector<int64_t> shape = leaf_shape();
  if (is_nf4()) shape = {(c10::multiply_integers(shape) + 1) / 2};
  return shape;
}

std::vector<int64_t> ParameterSharding::use_shape() const {
  std::vector<int64_t> shape = local_shape();
  if (is_nf4()) shape = {(c10::multiply_integers(shape) + 1) / 2};
  return shape;
}

std::vector<int64_t> ParameterSharding::indices(int64_t dim) const {
  std::vector<int64_t> out;
  const bool is_part = is_split() && dim == split_dim();
  for (const Range& range :
       is_part ? ranges() : std::vector<Range>{{0, shape().at(static_cast<size_t>(dim))}}) {
    for (int64_t i = range.begin; i < range.end; ++i) out.push_back(i);
  }
  return out;
}

Tensor ParameterSharding::part_of(const Tensor& whole) const {
  const at::NoGradGuard no_grad;
  const Tensor mine =
      is_split() ? Shards{axis_, placement_, name()}.slice(whole.detach()) : whole.detach();
  if (!is_flat()) return mine.clone();
  return mine.flatten().narrow(0, flat_->begin, flat_->size()).clone();
}

template <class Number, class Fill>
Tensor ParameterSharding::held_numbers(const Fill& fill) const {
  Tensor out = at::empty(local_shape(), at::dtype(c10::CppTypeToScalarType<Number>::value));
  Number* to = out.mutable_data_ptr<Number>();
  const int64_t dim = split_dim();
  int64_t outer = 1;
  int64_t inner = 1;
  for (int64_t d = 0; d < static_cast<int64_t>(shape().size()); ++d) {
    if (d < dim) outer *= shape()[static_cast<size_t>(d)];
    if (d > dim) inner *= shape()[static_cast<size_t>(d)];
  }
  const int64_t whole = shape().empty() ? 1 : shape()[static_cast<size_t>(dim)];
  // Parts are small, so that threads share the work of one large matrix.
  constexpr int64_t kMost = 1 << 14;
  struct Part {
    int64_t first, place, count;
  };
  std::vector<Part> parts;
  int64_t place = 0;
  for (int64_t o = 0; o < outer; ++o) {
    for (const Range& r : ranges()) {
      for (int64_t i = 0; i < r.size() * inner; i += kMost) {
        const int64_t count = std::min(kMost, r.size() * inner - i);
        parts.push_back(
            {.first = (o * whole + r.begin) * inner + i, .place = place, .count = count});
        place += count;
      }
    }
  }
  at::parallel_for(0, std::ssize(parts), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Part& part = parts[static_cast<size_t>(i)];
      fill(static_cast<uint64_t>(part.first),
           std::span<Number>(to + part.place, static_cast<size_t>(part.count)));
    }
  });
  if (is_flat()) return out.flatten().narrow(0, flat_->begin, flat_->size()).clone();
  return out;
}

Tensor ParameterSharding::initial_value(uint64_t seed, at::ScalarType dtype) const {
  const uint64_t key = stream_key(seed, name());
  Tensor value;
  if (init().kind == Init::Kind::kNormal) {
    value = held_numbers<double>(
                [key](uint64_t first, std::span<double> out) { fill_normal(key, first, out); })
                .mul_(init().value)
                .to(dtype);
  } else if (init().kind == Init::Kind::kUniform) {
    value = held_numbers<float>(
                [key](uint64_t first, std::span<float> out) { fill_uniform(key, 0, first, out); })
                .to(at::kDouble)
                .mul_(2)
                .sub_(1)
                .mul_(init().value)
                .to(dtype);
  } else {
    value = at::full(leaf_shape(), init().value, at::dtype(dtype));
  }
  return init().zero_row < 0 ? value : value.mul_(zero_in_row(init().zero_row));
}

Tensor ParameterSharding::zero_in_row(int64_t row) const {
  const auto size = static_cast<uint64_t>(numel() / shape()[0]);
  const uint64_t begin = static_cast<uint64_t>(row) * size;
  return held_numbers<float>([&](uint64_t first, std::span<float> out) {
    std::ranges::fill(out, 1.0F);
    const uint64_t from = std::max(first, begin);
    const uint64_t to = std::min(first + out.size(), begin + size);
    if (from < to) std::ranges::fill(out.subspan(from - first, to - from), 0.0F);
  });
}

}  // namespace cleave::inline nn
