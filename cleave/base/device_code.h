#pragma once

// Marks a function that nvcc compiles for GPUs and every other compiler for the CPU, so that the
// code of a CUDA kernel also runs in tests on the CPU.
#ifdef __CUDACC__
/// For GPUs.
#define CLEAVE_DEVICE __device__ __forceinline__
/// Before a loop that rarely runs: nvcc does not repeat its body, which would need registers.
#define CLEAVE_NOT_UNROLLED _Pragma("unroll 1")
#else
/// For the CPU.
#define CLEAVE_DEVICE inline
/// Nothing to do.
#define CLEAVE_NOT_UNROLLED
#endif
