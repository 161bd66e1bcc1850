#pragma once
#include <ATen/core/Tensor.h>

#include "cleave/base/dtype.h"

namespace cleave {

/// libtorch's name of a type and back. Throws Error(kUsage) for types that Cleave has no name for.
at::ScalarType scalar_type(DType dtype);
DType dtype_of(at::ScalarType type);

}  // namespace cleave
