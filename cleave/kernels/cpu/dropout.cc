#include "cleave/kernels/cpu/dropout.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "cleave/kernels/cuda/device_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/dropout.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/dropout-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

// Elements whose factors are made at a time, so that these stay in the L1 cache.
constexpr int64_t kPart = 1024;

/// Elements with successive numbers: from local index `begin` on, and from `number` on.
struct Run {
  int64_t begin = 0, end = 0;
  uint64_t number = 0;
};

/// The longest run from local element `i` on.
Run run_from(const ShardPlace& place, int64_t i, int64_t count) {
  if (place.held == place.whole) return {i, count, place.first + static_cast<uint64_t>(i)};
  const int64_t outer = i / (place.held * place.inner);
  const int64_t rest = i - outer * place.held * place.inner;
  int k = 0;
  while (k + 1 < place.num_pieces && rest >= place.pieces[k + 1].place * place.inner) ++k;
  const int64_t end = k + 1 < place.num_pieces ? place.pieces[k + 1].place : place.held;
  const int64_t shift = place.pieces[k].begin - place.pieces[k].place;
  const int64_t index = (outer * place.whole + shift) * place.inner + rest;
  return {i, (outer * place.held + end) * place.inner, place.first + static_cast<uint64_t>(index)};
}

/// The elements of a run, which has at most kPart.
template <class T>
void multiply_part(const DropoutJob& job, const Run& run) {
  HWY_ALIGN float memory[kPart + kFactorMargin];
  const KeepStream stream{job.key, job.step, job.p, job.scale};
  const int64_t count = run.end - run.begin;
  const float* factors = keep_factors(stream, run.number, count, memory);
  const auto* x = job.x == nullptr ? nullptr : static_cast<const T*>(job.x) + run.begin;
  auto* out = static_cast<T*>(job.out) + run.begin;
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const FloatVec factor = load(factors + i);
    store(x == nullptr ? factor : hn::Mul(load(x + i), factor), out + i);
  }
  for (; i < count; ++i)
    store_one(x == nullptr ? factors[i] : load_one(x + i) * factors[i], out + i);
}

void multiply_range(const DropoutJob& job, int64_t begin, int64_t end) {
  while (begin < end) {
    Run run = run_from(job.place, begin, job.count);
    run.end = std::min({run.end, end, begin + kPart});
    job.is_bf16 ? multiply_part<uint16_t>(job, run) : multiply_part<float>(job, run);
    begin = run.end;
  }
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(multiply_range);

void dropout_elements(const DropoutJob& job) {
  constexpr int64_t kGrain = 16384;  // elements per thread, at least
  at::parallel_for(0, job.count, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(multiply_range)(job, begin, end);
  });
}
}  // namespace cleave::inline kernels
#endif
