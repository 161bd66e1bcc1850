#pragma once

namespace cleave {

/// Gives libtorch the shapes of operators for which it has no kernel on the meta device outside
/// Python, so that a step can be run there (forecast.h). Once a process.
void provide_meta_kernels();

}  // namespace cleave
