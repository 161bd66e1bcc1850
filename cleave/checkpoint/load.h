#pragma once
#include <string>

#include "cleave/model/model.h"

namespace cleave {

/// Fills every parameter of a model, parallelized already, with this rank's part of a folder's
/// tensors, converted to `dtype`. Only the bytes that the rank holds are read; no rank waits for
/// another.
///
/// Throws Error(kFormat) that lists what is missing in the files, and what the files have and the
/// model does not; a shape that differs names both.
void load_weights(Layer& model, const ModelFolder& folder, at::ScalarType dtype);

/// The type that most of a folder's floating-point weights have.
DType stored_dtype(const ModelFolder& folder);

}  // namespace cleave
