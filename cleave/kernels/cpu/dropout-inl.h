// Included once per instruction set by hwy/foreach_target.h.
#if defined(CLEAVE_KERNELS_DROPOUT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CLEAVE_KERNELS_DROPOUT_INL_H
#undef CLEAVE_KERNELS_DROPOUT_INL_H
#else
/// Toggled include guard: each instruction set includes the file once.
#define CLEAVE_KERNELS_DROPOUT_INL_H
#endif

#include <bit>

#include "cleave/base/philox_math.h"
#include "cleave/kernels/cpu/simd-inl.h"

/// Compiled for one instruction set from here.
HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

/// 32-bit numbers, as many as kFloats has.
using Words = hn::RebindToUnsigned<Floats>;
using WordVec = hn::Vec<Words>;
inline constexpr Words kWords;

/// Writes the four numbers of the counters from `counter` on, one counter per lane, with the bits
/// of philox_words().
#if HWY_TARGET == HWY_SCALAR
inline void philox_lanes(uint64_t key, uint64_t counter, uint64_t step, uint32_t* to) {
  const auto words = philox_words(key, counter, step);
  std::copy(words.begin(), words.end(), to);
}
#else
/// The halves of the 64-bit products of each lane and a constant.
struct Product {
  WordVec high, low;
};
HWY_INLINE Product multiply_words(WordVec a, WordVec constant) {
  const hn::Repartition<uint64_t, Words> wide;
  const auto even = hn::MulEven(a, constant);
  const auto odd =
      hn::MulEven(hn::BitCast(kWords, hn::ShiftRight<32>(hn::BitCast(wide, a))), constant);
  return {
      .high = hn::OddEven(hn::BitCast(kWords, odd), hn::BitCast(kWords, hn::ShiftRight<32>(even))),
      .low = hn::OddEven(hn::BitCast(kWords, hn::ShiftLeft<32>(odd)), hn::BitCast(kWords, even))};
}

HWY_INLINE void philox_lanes(uint64_t key, uint64_t counter, uint64_t step, uint32_t* to) {
  const auto set = [](uint64_t bits) { return hn::Set(kWords, static_cast<uint32_t>(bits)); };
  const WordVec first = set(counter);
  WordVec c0 = hn::Add(first, hn::Iota(kWords, 0));
  WordVec c1 = hn::IfThenElse(hn::Lt(c0, first), set((counter >> 32) + 1), set(counter >> 32));
  WordVec c2 = set(step);
  WordVec c3 = set(step >> 32);
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round, k0 += kWeyl0, k1 += kWeyl1) {
    const Product p0 = multiply_words(c0, set(kMultiplier0));
    const Product p1 = multiply_words(c2, set(kMultiplier1));
    c0 = hn::Xor(hn::Xor(p1.high, c1), set(k0));
    c1 = p1.low;
    c2 = hn::Xor(hn::Xor(p0.high, c3), set(k1));
    c3 = p0.low;
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, kWords, to);
}
#endif

/// Random numbers that decide which elements dropout keeps.
struct KeepStream {
  uint64_t key = 0, step = 0;
  float p = 0, scale = 1;
};

/// Room that keep_factors() needs beyond the factors.
inline constexpr int64_t kFactorMargin = 4 * static_cast<int64_t>(hn::MaxLanes(kFloats)) + 4;

/// Writes the factors of `count` elements from number `first` of the stream on, `scale` or 0, into
/// `memory`, and returns where they begin.
HWY_INLINE const float* keep_factors(const KeepStream& stream, uint64_t first, int64_t count,
                                     float* memory) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const hn::RebindToSigned<Floats> integers;
  const FloatVec p = hn::Set(kFloats, stream.p);
  const FloatVec scale = hn::Set(kFloats, stream.scale);
  const FloatVec unit = hn::Set(kFloats, 0x1p-24F);
  const auto skipped = static_cast<int64_t>(first % 4);
  uint64_t counter = first / 4;
  for (int64_t i = 0; i < skipped + count; i += 4 * lanes, counter += hn::Lanes(kFloats)) {
    HWY_ALIGN uint32_t words[4 * hn::MaxLanes(kFloats)];
    philox_lanes(stream.key, counter, stream.step, words);
    for (int64_t k = 0; k < 4 * lanes; k += lanes) {
      const auto bits = hn::ShiftRight<8>(hn::Load(kWords, words + k));
      const FloatVec u = hn::Mul(hn::ConvertTo(kFloats, hn::BitCast(integers, bits)), unit);
      store(hn::IfThenElseZero(hn::Ge(u, p), scale), memory + i + k);
    }
  }
  return memory + skipped;
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
/// Ends HWY_BEFORE_NAMESPACE.
HWY_AFTER_NAMESPACE();
#endif
