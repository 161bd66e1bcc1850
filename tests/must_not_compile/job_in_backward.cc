// A backward function that keeps a kernel's raw pointers. With KEEPS_TENSOR_SIZES it keeps only
// numbers and compiles, which shows that the compiler refuses the pointers.
#include <functional>

#include "cleave/kernels/cpu/rows.h"

std::function<void()> backward_of() {
  cleave::LayerNormJob job;
  job.width = 1;
#ifdef KEEPS_TENSOR_SIZES
  return [width = job.width]() mutable { ++width; };
#else
  return [job]() mutable { ++job.width; };
#endif
}
