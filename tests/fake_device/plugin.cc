// A libcleave_cuda.so whose GPUs are fake devices. A program that finds it next to its libcleave.so
// uses them for --device cuda.
#include "tests/fake_device/runtime.h"

void cleave_cuda(std::unique_ptr<cleave::Cuda>* out) {
  *out = cleave::fake_device::make_runtime();
}
