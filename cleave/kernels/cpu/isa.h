#pragma once
#include <cstdint>

namespace cleave::inline kernels {

/// Instructions of x86-64 that kernels require.
enum class Isa : uint8_t {
  kAvx2,        ///< with FMA and F16C
  kAvx512,      ///< F, BW, DQ and VL
  kAvx512Bf16,  ///< products of bf16 pairs
  kAvx512Fp16,
  kAvx512Vnni,  ///< products of bytes
  kAmx,         ///< tiles of bf16 and int8, which the system may still refuse
};

/// Whether this CPU has them; false on CPUs other than x86-64.
///
/// CLEAVE_MAX_CPU_ISA=AVX2 or AVX512_CORE_VNNI in the environment hides what is newer, so that
/// tests on a newer CPU run what an older one runs; AVX2 also from Highway. Another value ends the
/// process. oneDNN has ONEDNN_MAX_CPU_ISA with the same values, libtorch ATEN_CPU_CAPABILITY=avx2.
bool has_isa(Isa isa);

}  // namespace cleave::inline kernels
