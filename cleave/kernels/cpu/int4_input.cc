#include "cleave/kernels/cpu/int4_input.h"

#include <algorithm>

#include "cleave/kernels/cpu/int4_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/int4_input.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

/// Groups with a smaller magnitude are treated as zeros, so that dividing by the scale stays
/// finite.
constexpr float kMinMagnitude = 1e-30F;

/// Scale of 32 numbers. `known`: their largest magnitude, or null. Adds 0 times each number, which
/// is NaN for NaN and infinity: a maximum could lose them.
HWY_INLINE float scale_of(const float* x, const float* known) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  FloatVec largest = hn::Zero(kFloats), zeros = hn::Zero(kFloats);
  for (int64_t i = 0; i < kInt4Group; i += lanes) {
    const FloatVec v = load(x + i);
    largest = hn::Max(largest, hn::Abs(v));
    zeros = hn::MulAdd(v, hn::Zero(kFloats), zeros);
  }
  const float magnitude = known != nullptr ? *known : hn::GetLane(hn::MaxOfLanes(kFloats, largest));
  const float scale = magnitude < kMinMagnitude ? 1 : magnitude / 127;
  return scale + hn::GetLane(hn::SumOfLanes(kFloats, zeros));
}

/// Writes 32 numbers times `factor` as int8 and returns their sum.
HWY_INLINE int32_t quantize(const float* x, float factor, int8_t* to) {
  const hn::RebindToSigned<Floats> words;
  const hn::Rebind<int8_t, Floats> bytes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const FloatVec factors = hn::Set(kFloats, factor);
  auto sum = hn::Zero(words);
  for (int64_t i = 0; i < kInt4Group; i += lanes) {
    const auto near = hn::NearestInt(hn::Mul(load(x + i), factors));
    sum = hn::Add(sum, near);
    hn::StoreU(hn::DemoteTo(bytes, near), bytes, to + i);
  }
  return hn::GetLane(hn::SumOfLanes(words, sum));
}

void input_task(const Int4InputJob& job, int64_t begin, int64_t end) {
  const auto groups = static_cast<int64_t>(job.parts.size());
  for (int64_t row = begin; row < end; ++row) {
    const float* x = job.x + row * job.width;
    int64_t at = row * groups;
    for (const Int4Part& part : job.parts) {
      const float* from = x + part.from;
      float padded[kInt4Group] = {};
      if (part.count < kInt4Group) {
        std::copy_n(from, part.count, padded + part.at);
        from = padded;
      }
      const float scale = scale_of(from, job.largest == nullptr ? nullptr : job.largest + at);
      const int32_t sum = quantize(from, 1 / scale, job.values + at * kInt4Group);
      job.scales[at] = scale;
      job.offsets[at] = -8 * sum;
      job.totals[at] = scale * static_cast<float>(sum);
      ++at;
    }
  }
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(input_task);

void int4_input_rows(const Int4InputJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(input_task)(job, begin, end);
}

std::vector<Int4Part> int4_parts(const std::vector<Range>& inputs) {
  std::vector<Int4Part> parts;
  int64_t from = 0;
  for (const Range& range : inputs) {
    for (int64_t i = range.begin; i < range.end;) {
      const int64_t index = i / kInt4Group;
      const int64_t count = std::min(range.end, (index + 1) * kInt4Group) - i;
      parts.push_back({.index = index, .from = from, .at = i % kInt4Group, .count = count});
      from += count;
      i += count;
    }
  }
  return parts;
}
}  // namespace cleave::inline kernels
#endif
