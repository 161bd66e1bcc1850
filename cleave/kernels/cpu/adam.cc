#include "cleave/kernels/cpu/adam.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/adam.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

/// State of one vector of elements.
struct Lanes {
  FloatVec w, m, v;
};

/// The rule with its numbers broadcast to all lanes.
class Update {
 public:
  explicit Update(const AdamRule& rule)
      : is_decoupled_(rule.is_decoupled),
        gradient_scale_(set(rule.gradient_scale)),
        added_decay_(set(rule.is_decoupled ? 0 : rule.weight_decay)),
        kept_(set(rule.is_decoupled ? 1 - rule.lr * rule.weight_decay : 1)),
        beta1_(set(rule.beta1)),
        other_beta1_(set(1 - rule.beta1)),
        beta2_(set(rule.beta2)),
        other_beta2_(set(1 - rule.beta2)),
        step_size_(set(rule.lr / (1 - std::pow(rule.beta1, rule.step)))),
        root_scale_(set(1 / std::sqrt(1 - std::pow(rule.beta2, rule.step)))),
        eps_(set(rule.eps)) {}

  HWY_INLINE void apply(FloatVec gradient, Lanes& at) const {
    FloatVec g = hn::Mul(gradient, gradient_scale_);
    if (!is_decoupled_) g = hn::MulAdd(added_decay_, at.w, g);
    at.m = hn::MulAdd(beta1_, at.m, hn::Mul(other_beta1_, g));
    at.v = hn::MulAdd(beta2_, at.v, hn::Mul(other_beta2_, hn::Mul(g, g)));
    const FloatVec root = hn::MulAdd(hn::Sqrt(at.v), root_scale_, eps_);
    at.w = hn::NegMulAdd(step_size_, hn::Div(at.m, root), hn::Mul(at.w, kept_));
  }

 private:
  static FloatVec set(double value) { return hn::Set(kFloats, static_cast<float>(value)); }

  bool is_decoupled_;
  FloatVec gradient_scale_, added_decay_, kept_, beta1_, other_beta1_, beta2_, other_beta2_;
  FloatVec step_size_, root_scale_, eps_;
};

template <class Gradient>
void adam(const AdamRun& run, const AdamRule& rule, int64_t begin, int64_t end) {
  const auto* gradient = static_cast<const Gradient*>(run.gradient);
  const Update update(rule);
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    Lanes at{load(run.weight + i), load(run.exp_avg + i), load(run.exp_avg_sq + i)};
    update.apply(load(gradient + i), at);
    store(at.w, run.weight + i);
    store(at.m, run.exp_avg + i);
    store(at.v, run.exp_avg_sq + i);
    if (run.bf16_weight != nullptr) store(at.w, run.bf16_weight + i);
  }
  if (i == end) return;
  // The rest is padded to a whole vector, so that its arithmetic is the same.
  const int64_t rest = end - i;
  constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(float);
  HWY_ALIGN float g[kMaxLanes] = {};
  HWY_ALIGN float w[kMaxLanes] = {};
  HWY_ALIGN float m[kMaxLanes] = {};
  HWY_ALIGN float v[kMaxLanes] = {};
  for (int64_t k = 0; k < rest; ++k) g[k] = load_one(gradient + i + k);
  std::copy_n(run.weight + i, rest, w);
  std::copy_n(run.exp_avg + i, rest, m);
  std::copy_n(run.exp_avg_sq + i, rest, v);
  Lanes at{load(w), load(m), load(v)};
  update.apply(load(g), at);
  store(at.w, w);
  store(at.m, m);
  store(at.v, v);
  std::copy_n(w, rest, run.weight + i);
  std::copy_n(m, rest, run.exp_avg + i);
  std::copy_n(v, rest, run.exp_avg_sq + i);
  for (int64_t k = 0; k < rest && run.bf16_weight != nullptr; ++k) {
    store_one(w[k], run.bf16_weight + i + k);
  }
}

void adam_task(const AdamRun& run, const AdamRule& rule, int64_t begin, int64_t end) {
  run.is_bf16_gradient ? adam<uint16_t>(run, rule, begin, end) : adam<float>(run, rule, begin, end);
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(adam_task);

void adam_range(const AdamRun& run, const AdamRule& rule, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(adam_task)(run, rule, begin, end);
}
}  // namespace cleave::inline kernels
#endif
