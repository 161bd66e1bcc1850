#include "cleave/kernels/cpu/dequantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/dequantize.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

template <class T>
void dequantize(const DequantizeJob& job, int64_t begin, int64_t end) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  for (int64_t r = begin; r < end; ++r) {
    const int8_t* from = job.values + r * job.width;
    T* to = static_cast<T*>(job.to) + r * job.width;
    const float of_row = job.has_column_scales ? 1.0F : job.scales[r];
    const FloatVec of_rows = hn::Set(kFloats, of_row);
    int64_t i = 0;
    for (; i + lanes <= job.width; i += lanes) {
      const FloatVec scale = job.has_column_scales ? load(job.scales + i) : of_rows;
      store(hn::Mul(load(from + i), scale), to + i);
    }
    for (; i < job.width; ++i) {
      const float scale = job.has_column_scales ? job.scales[i] : of_row;
      store_one(static_cast<float>(from[i]) * scale, to + i);
    }
  }
}

void dequantize_task(const DequantizeJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? dequantize<uint16_t>(job, begin, end) : dequantize<float>(job, begin, end);
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(dequantize_task);

void dequantize_rows(const DequantizeJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(dequantize_task)(job, begin, end);
}
}  // namespace cleave::inline kernels
#endif
