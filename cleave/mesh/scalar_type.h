#pragma once
#include <ATen/core/Tensor.h>

#include "cleave/base/dtype.h"

namespace cleave::inline mesh {

/// Conversion between Cleave's and libtorch's types. Throws Error(kUsage) for unsupported types.
at::ScalarType scalar_type(DType dtype);
DType dtype_of(at::ScalarType type);

}  // namespace cleave::inline mesh
