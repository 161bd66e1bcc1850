// Included once per instruction set by hwy/foreach_target.h.
#if defined(CLEAVE_KERNELS_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CLEAVE_KERNELS_SIMD_INL_H
#undef CLEAVE_KERNELS_SIMD_INL_H
#else
/// Toggled include guard: each instruction set includes the file once.
#define CLEAVE_KERNELS_SIMD_INL_H
#endif

#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

/// Compiled for one instruction set from here.
HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
/// Highway's functions for it.
namespace hn = hwy::HWY_NAMESPACE;

/// fp32 lanes of the widest vector.
using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;
inline constexpr Floats kFloats;

/// Loads a vector of fp32 from fp32 or bf16 (the upper half of an fp32).
HWY_INLINE FloatVec load(const float* from) {
  return hn::LoadU(kFloats, from);
}
HWY_INLINE FloatVec load(const uint16_t* from) {
  const hn::Rebind<uint16_t, Floats> halves;
  const hn::RebindToUnsigned<Floats> words;
  return hn::BitCast(kFloats, hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LoadU(halves, from))));
}
HWY_INLINE FloatVec load(const int8_t* from) {
  const hn::Rebind<int8_t, Floats> bytes;
  const hn::RebindToSigned<Floats> words;
  return hn::ConvertTo(kFloats, hn::PromoteTo(words, hn::LoadU(bytes, from)));
}
HWY_INLINE void store(FloatVec v, float* to) {
  hn::StoreU(v, kFloats, to);
}
/// fp32 bits whose upper half is v as bf16, rounded to nearest, ties to even. NaN stays NaN.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<Floats>> rounded_bits(FloatVec v) {
  const hn::RebindToUnsigned<Floats> words;
  const auto bits = hn::BitCast(words, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(words, 0x7FFF)), odd);
  const auto quiet = hn::Or(bits, hn::Set(words, 0x00400000));
  return hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(v)), quiet, rounded);
}
HWY_INLINE void store(FloatVec v, uint16_t* to) {
  const hn::Rebind<uint16_t, Floats> halves;
  const hn::RebindToSigned<Floats> signed_words;
  const auto kept = hn::ShiftRight<16>(rounded_bits(v));
  hn::StoreU(hn::DemoteTo(halves, hn::BitCast(signed_words, kept)), halves, to);
}

/// e^v. Highway's Exp returns 0 for NaN, which would hide errors, and is undefined above 104, where
/// e^v is infinite in fp32.
HWY_INLINE FloatVec exp(FloatVec v) {
  const FloatVec bounded = hn::Min(v, hn::Set(kFloats, 104.0F));
  return hn::IfThenElse(hn::IsNaN(v), v, hn::Exp(kFloats, bounded));
}

/// tanh v. Highway's Tanh loses NaN too.
HWY_INLINE FloatVec tanh(FloatVec v) {
  return hn::IfThenElse(hn::IsNaN(v), v, hn::Tanh(kFloats, v));
}

/// Calls body(i) for whole vectors of [0, width), then tail(i) for the remaining elements.
template <class Body, class Tail>
HWY_INLINE void sweep(int64_t width, const Body& body, const Tail& tail) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) body(i);
  for (; i < width; ++i) tail(i);
}

/// The sum of a vector's elements.
HWY_INLINE float sum_of(FloatVec v) {
  return hn::GetLane(hn::SumOfLanes(kFloats, v));
}

/// Scalar versions, for the elements that do not fill a vector.
inline float load_one(const float* from) {
  return *from;
}
inline float load_one(const uint16_t* from) {
  const uint32_t bits = uint32_t{*from} << 16;
  float value = 0;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
inline void store_one(float v, float* to) {
  *to = v;
}
inline void store_one(float v, uint16_t* to) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &v, sizeof bits);
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  bits = is_nan ? bits | 0x00400000 : bits + 0x7FFF + ((bits >> 16) & 1);
  *to = static_cast<uint16_t>(bits >> 16);
}

}  // namespace cleave::HWY_NAMESPACE
/// Ends HWY_BEFORE_NAMESPACE.
HWY_AFTER_NAMESPACE();
#endif
