// Compiled once for each instruction set; reduce() uses the best one that the CPU supports.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/comm/shm/reduce.cc"
#include <hwy/foreach_target.h>
//
#include <cstdint>
#include <cstring>
#include <hwy/highway.h>

#include "cleave/comm/shm/collectives.h"

#ifndef CLEAVE_COMM_REDUCTION
#define CLEAVE_COMM_REDUCTION
namespace cleave::inline comm {

/// The arguments of reduce() and reduce_part().
struct Reduction {
  const void* const* in;
  size_t num_in;
  void* const* out;
  size_t num_out;
  size_t count;  // elements
  DType dtype;
  ReduceOp op;
  const void* before = nullptr;  // accumulators of earlier inputs, to which in[0] is added
  bool is_partial = false;       // out[0] gets accumulators
};

}  // namespace cleave::inline comm
#endif

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// How each dtype is stored and accumulated. Tag is the Highway tag of the accumulated elements.

template <class T>
struct Plain {
  using Stored = T;
  using Tag = hn::ScalableTag<T>;
  using Vector = hn::Vec<Tag>;
  static HWY_INLINE Vector load(const Stored* from) { return hn::LoadU(Tag(), from); }
  static HWY_INLINE void store(Vector value, Stored* to) { hn::StoreU(value, Tag(), to); }
};

using Float = hn::ScalableTag<float>;
using Bits = hn::RebindToUnsigned<Float>;
using Half = hn::Rebind<uint16_t, Float>;

// Both 16-bit floats. Format converts their bits to those of an fp32 and back.
template <class Format>
struct Sixteen {
  using Stored = uint16_t;
  using Tag = Float;
  using Vector = hn::Vec<Float>;
  static HWY_INLINE Vector load(const Stored* from) {
    return Format::widen(hn::PromoteTo(Bits(), hn::LoadU(Half(), from)));
  }
  static HWY_INLINE void store(Vector value, Stored* to) {
    // The upper halves are zero, so the values fit as signed numbers and do not saturate.
    const auto narrow = hn::BitCast(hn::RebindToSigned<Float>(), Format::narrow(value));
    hn::StoreU(hn::DemoteTo(Half(), narrow), Half(), to);
  }
};

HWY_INLINE hn::Vec<Bits> all_bits(uint32_t value) {
  return hn::Set(Bits(), value);
}

// The same steps as in tests/support/float16.h, which explains them.

struct Bf16Format {
  static HWY_INLINE hn::Vec<Float> widen(hn::Vec<Bits> bits) {
    return hn::BitCast(Float(), hn::ShiftLeft<16>(bits));
  }
  static HWY_INLINE hn::Vec<Bits> narrow(hn::Vec<Float> value) {
    const auto bits = hn::BitCast(Bits(), value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), all_bits(1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, all_bits(0x7fffU))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), all_bits(0x40U));
    const auto is_nan = hn::RebindMask(Bits(), hn::IsNaN(value));
    return hn::IfThenElse(is_nan, quiet, rounded);
  }
};

struct Fp16Format {
  static HWY_INLINE hn::Vec<Float> widen(hn::Vec<Bits> half) {
    const auto sign = hn::ShiftLeft<16>(hn::And(half, all_bits(0x8000U)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(half, all_bits(0x7fffU)));
    const auto exponents = all_bits(0x7c00U << 13);
    const auto exponent = hn::And(magnitude, exponents);
    const auto normal = hn::Add(magnitude, all_bits((127U - 15U) << 23));
    const auto infinite = hn::Add(magnitude, all_bits((255U - 31U) << 23));
    const auto hidden = all_bits((127U - 14U) << 23);
    const auto subnormal = hn::BitCast(
        Bits(),
        hn::Sub(hn::BitCast(Float(), hn::Add(magnitude, hidden)), hn::BitCast(Float(), hidden)));
    const auto finite = hn::IfThenElse(hn::Eq(exponent, hn::Zero(Bits())), subnormal, normal);
    const auto bits = hn::IfThenElse(hn::Eq(exponent, exponents), infinite, finite);
    return hn::BitCast(Float(), hn::Or(bits, sign));
  }
  static HWY_INLINE hn::Vec<Bits> narrow(hn::Vec<Float> value) {
    const auto all = hn::BitCast(Bits(), value);
    const auto sign = hn::And(hn::ShiftRight<16>(all), all_bits(0x8000U));
    const auto bits = hn::And(all, all_bits(0x7fffffffU));
    const auto odd = hn::And(hn::ShiftRight<13>(bits), all_bits(1));
    const auto moved = hn::Add(bits, all_bits(0xfffU - ((127U - 15U) << 23)));
    const auto normal = hn::ShiftRight<13>(hn::Add(moved, odd));
    const auto half = hn::Set(Float(), 0.5F);
    const auto subnormal = hn::Sub(hn::BitCast(Bits(), hn::Add(hn::BitCast(Float(), bits), half)),
                                   hn::BitCast(Bits(), half));
    const auto is_nan = hn::Gt(bits, all_bits(0x7f800000U));
    const auto special = hn::IfThenElse(is_nan, all_bits(0x7e00U), all_bits(0x7c00U));
    const auto is_small = hn::Gt(all_bits((127U - 14U) << 23), bits);
    const auto finite = hn::IfThenElse(is_small, subnormal, normal);
    const auto is_large = hn::Gt(bits, all_bits(((127U + 16U) << 23) - 1));
    return hn::Or(hn::IfThenElse(is_large, special, finite), sign);
  }
};

struct Sum {
  template <class Vector>
  static HWY_INLINE Vector apply(Vector a, Vector b) {
    return hn::Add(a, b);
  }
};

// NaN if either operand is NaN.
struct FloatMax {
  template <class Vector>
  static HWY_INLINE Vector apply(Vector a, Vector b) {
    return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a);
  }
};

struct IntegerMax {
  template <class Vector>
  static HWY_INLINE Vector apply(Vector a, Vector b) {
    return hn::Max(a, b);
  }
};

/// The elements at `at` of the first summand: the accumulators before in[0], or in[0].
template <class Kind>
HWY_INLINE hn::Vec<typename Kind::Tag> load_first(const Reduction& work, size_t at) {
  using Tag = typename Kind::Tag;
  if (work.before == nullptr) {
    return Kind::load(static_cast<const typename Kind::Stored*>(work.in[0]) + at);
  }
  return hn::LoadU(Tag(), static_cast<const hn::TFromD<Tag>*>(work.before) + at);
}

template <class Kind>
HWY_INLINE void store_all(const Reduction& work, hn::Vec<typename Kind::Tag> value, size_t at) {
  using Tag = typename Kind::Tag;
  if (work.is_partial) {
    hn::StoreU(value, Tag(), static_cast<hn::TFromD<Tag>*>(work.out[0]) + at);
    return;
  }
  for (size_t k = 0; k < work.num_out; ++k) {
    Kind::store(value, static_cast<typename Kind::Stored*>(work.out[k]) + at);
  }
}

/// Reduces four vectors, starting at element `at`.
template <class Kind, class Operation>
HWY_INLINE void reduce_four(const Reduction& work, size_t at) {
  using Stored = typename Kind::Stored;
  const size_t lanes = hn::Lanes(typename Kind::Tag());
  auto a = load_first<Kind>(work, at);
  auto b = load_first<Kind>(work, at + lanes);
  auto c = load_first<Kind>(work, at + 2 * lanes);
  auto d = load_first<Kind>(work, at + 3 * lanes);
  for (size_t k = work.before == nullptr ? 1 : 0; k < work.num_in; ++k) {
    const Stored* in = static_cast<const Stored*>(work.in[k]) + at;
    a = Operation::apply(a, Kind::load(in));
    b = Operation::apply(b, Kind::load(in + lanes));
    c = Operation::apply(c, Kind::load(in + 2 * lanes));
    d = Operation::apply(d, Kind::load(in + 3 * lanes));
  }
  store_all<Kind>(work, a, at);
  store_all<Kind>(work, b, at + lanes);
  store_all<Kind>(work, c, at + 2 * lanes);
  store_all<Kind>(work, d, at + 3 * lanes);
}

/// Reduces the last `count` elements, starting at `at`; at most one vector.
template <class Kind, class Operation>
HWY_INLINE void reduce_last(const Reduction& work, size_t at, size_t count) {
  using Stored = typename Kind::Stored;
  using Tag = typename Kind::Tag;
  using Accumulator = hn::TFromD<Tag>;
  // Through local buffers, because a whole vector would reach beyond the end.
  HWY_ALIGN Stored buffer[HWY_MAX_BYTES / sizeof(Stored)] = {};
  HWY_ALIGN Accumulator wide[HWY_MAX_BYTES / sizeof(Accumulator)] = {};
  const auto load = [&](size_t k) HWY_ATTR {
    std::memcpy(buffer, static_cast<const Stored*>(work.in[k]) + at, count * sizeof(Stored));
    return Kind::load(buffer);
  };
  if (work.before != nullptr) {
    std::memcpy(wide, static_cast<const Accumulator*>(work.before) + at,
                count * sizeof(Accumulator));
  }
  auto sum = work.before == nullptr ? load(0) : hn::LoadU(Tag(), wide);
  for (size_t k = work.before == nullptr ? 1 : 0; k < work.num_in; ++k) {
    sum = Operation::apply(sum, load(k));
  }
  if (work.is_partial) {
    hn::StoreU(sum, Tag(), wide);
    std::memcpy(static_cast<Accumulator*>(work.out[0]) + at, wide, count * sizeof(Accumulator));
    return;
  }
  Kind::store(sum, buffer);
  for (size_t k = 0; k < work.num_out; ++k) {
    std::memcpy(static_cast<Stored*>(work.out[k]) + at, buffer, count * sizeof(Stored));
  }
}

template <class Kind, class Operation>
void reduce_all(const Reduction& work) {
  const size_t lanes = hn::Lanes(typename Kind::Tag());
  size_t at = 0;
  for (; work.count - at >= 4 * lanes; at += 4 * lanes) reduce_four<Kind, Operation>(work, at);
  while (at < work.count) {
    const size_t count = work.count - at < lanes ? work.count - at : lanes;
    reduce_last<Kind, Operation>(work, at, count);
    at += count;
  }
}

template <class Kind, class Max>
void reduce_by(const Reduction& work) {
  if (work.op == ReduceOp::kSum) {
    reduce_all<Kind, Sum>(work);
  } else {
    reduce_all<Kind, Max>(work);
  }
}

void reduce_any(const Reduction& work) {
  switch (work.dtype) {
    case DType::kF32:
      return reduce_by<Plain<float>, FloatMax>(work);
    case DType::kF64:
      return reduce_by<Plain<double>, FloatMax>(work);
    case DType::kBf16:
      return reduce_by<Sixteen<Bf16Format>, FloatMax>(work);
    case DType::kF16:
      return reduce_by<Sixteen<Fp16Format>, FloatMax>(work);
    case DType::kI64:
      return reduce_by<Plain<int64_t>, IntegerMax>(work);
    case DType::kI32:
      return reduce_by<Plain<int32_t>, IntegerMax>(work);
    default:
      CLEAVE_BUG("reduce of ", name(work.dtype));
  }
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline comm {

HWY_EXPORT(reduce_any);

bool can_reduce(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF64:
    case DType::kBf16:
    case DType::kF16:
    case DType::kI64:
    case DType::kI32:
      return true;
    default:
      return false;
  }
}

void reduce(std::span<const void* const> in, std::span<void* const> out, int64_t count, DType dtype,
            ReduceOp op) {
  HWY_DYNAMIC_DISPATCH(reduce_any)
  ({in.data(), in.size(), out.data(), out.size(), static_cast<size_t>(count), dtype, op});
}

DType accumulator_of(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 ? DType::kF32 : dtype;
}

void reduce_part(std::span<const void* const> in, const ReductionPart& part, void* out,
                 int64_t count, DType dtype, ReduceOp op) {
  const Reduction work{in.data(), in.size(),   &out,         1, static_cast<size_t>(count), dtype,
                       op,        part.before, !part.is_last};
  HWY_DYNAMIC_DISPATCH(reduce_any)(work);
}

}  // namespace cleave::inline comm
#endif
