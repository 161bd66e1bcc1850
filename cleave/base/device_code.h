#pragma once

// Marks a function that nvcc compiles for GPUs and every other compiler for the CPU, so that the
// code of a CUDA kernel also runs in tests on the CPU.
#ifdef __CUDACC__
/// For GPUs.
#define CLEAVE_DEVICE __device__ __forceinline__
#else
/// For the CPU.
#define CLEAVE_DEVICE inline
#endif
