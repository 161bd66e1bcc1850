#include "cleave/kernels/cpu/isa.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>

#include "hwy/highway.h"
#endif

namespace cleave::inline kernels {

#if defined(__x86_64__)
namespace {

uint32_t bit_of(Isa isa) {
  return uint32_t{1} << static_cast<unsigned>(isa);
}

/// Source: Intel's manual of instructions, CPUID leaf 1.
bool cpu_has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1U << 29)) != 0;
}

/// All of these bits of EDX. Source: the same, leaf 7.
bool cpu_has(unsigned bits) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & bits) == bits;
}
constexpr unsigned kFp16 = 1U << 23;
constexpr unsigned kAmxBf16 = 1U << 22, kAmxTiles = 1U << 24, kAmxInt8 = 1U << 25;

/// The bits of what this CPU has.
uint32_t read_isa() {
  __builtin_cpu_init();
  uint32_t bits = 0;
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && cpu_has_f16c()) {
    bits |= bit_of(Isa::kAvx2);
  }
  const char* variable = std::getenv("CLEAVE_MAX_CPU_ISA");  // NOLINT(concurrency-mt-unsafe)
  const std::string_view most = variable == nullptr ? "" : variable;
  if (most == "AVX2") {
    hwy::DisableTargets(HWY_AVX2 - 1);  // newer ones have lower bits
    return bits;
  }
  if (!most.empty() && most != "AVX512_CORE_VNNI") {
    // A library that is being loaded cannot throw.
    (void)std::fputs("CLEAVE_MAX_CPU_ISA: expected AVX2 or AVX512_CORE_VNNI\n", stderr);
    std::abort();
  }
  if (__builtin_cpu_supports("avx512f") == 0 || __builtin_cpu_supports("avx512bw") == 0 ||
      __builtin_cpu_supports("avx512dq") == 0 || __builtin_cpu_supports("avx512vl") == 0) {
    return bits;
  }
  bits |= bit_of(Isa::kAvx512);
  if (__builtin_cpu_supports("avx512vnni") != 0) bits |= bit_of(Isa::kAvx512Vnni);
  if (most == "AVX512_CORE_VNNI") return bits;
  if (__builtin_cpu_supports("avx512bf16") != 0) bits |= bit_of(Isa::kAvx512Bf16);
  if (cpu_has(kFp16)) bits |= bit_of(Isa::kAvx512Fp16);
  if (cpu_has(kAmxBf16 | kAmxTiles | kAmxInt8)) bits |= bit_of(Isa::kAmx);
  return bits;
}

/// Read when the library is loaded: before Highway chooses kernels, at their first call.
const uint32_t kIsaBits = read_isa();

}  // namespace

bool has_isa(Isa isa) {
  return (kIsaBits & bit_of(isa)) != 0;
}
#else
bool has_isa(Isa) {
  return false;
}
#endif

}  // namespace cleave::inline kernels
