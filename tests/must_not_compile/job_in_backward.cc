// A backward function that keeps a kernel's raw pointers: those of JOB, by default LayerNormJob.
// With KEEPS_TENSOR_SIZES it keeps only numbers and compiles, which shows that the compiler refuses
// the pointers.
#include <functional>

#include "cleave/kernels/cpu/int4_loops.h"
#include "cleave/kernels/cpu/rows.h"
#include "cleave/kernels/cuda/device_kernels.h"

#ifndef JOB
#define JOB LayerNormJob
#endif

std::function<bool()> backward_of() {
  cleave::JOB job;
#ifdef KEEPS_TENSOR_SIZES
  return [bytes = sizeof(job)] { return bytes > 0; };
#else
  return [job] { return &job != nullptr; };
#endif
}
