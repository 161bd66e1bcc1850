#include "cleave/kernels/cpu/float_products.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/float_products.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/float_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

void multiply_task(const FloatProduct& product) {
  multiply_floats(product);
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(multiply_task);

void multiply_float_rows(const FloatProduct& product) {
  HWY_DYNAMIC_DISPATCH(multiply_task)(product);
}
}  // namespace cleave::inline kernels
#endif
