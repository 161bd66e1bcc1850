#pragma once

namespace cleave {

/// Registers meta-device kernels of operators for which libtorch has one only in Python, so that a
/// step can run there (forecast.h). Only the first call in a process has an effect.
void provide_meta_kernels();

}  // namespace cleave
