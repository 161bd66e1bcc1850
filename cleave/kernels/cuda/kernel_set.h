#pragma once
#include "cleave/kernels/cuda/elementwise_kernels.h"
#include "cleave/kernels/cuda/list_kernels.h"
#include "cleave/kernels/cuda/norm_kernels.h"
#include "cleave/kernels/cuda/random_kernels.h"
#include "cleave/kernels/cuda/softmax_kernels.h"

namespace cleave::inline kernels {

/// The kernels, launched by launch(kernel, grid, arguments...): CudaLaunch of kernels.cu on GPUs,
/// and in tests FiberLaunch on the CPU.
template <class Launch>
class KernelSet : public DeviceKernels {
 public:
  /// Launches by a copy of `launch`.
  explicit KernelSet(const Launch& launch = Launch()) : launch_(launch) {}

  void dropout(const DropoutJob& job) const override { launch_dropout(launch_, job); }
  void initial_values(const InitialJob& job) const override { launch_initial_values(launch_, job); }
  void sums_of_squares(std::span<const SquaresOf> tensors, double* parts,
                       double* sums) const override {
    launch_sums_of_squares(launch_, tensors, parts, sums);
  }
  void adam(std::span<const AdamTensor> tensors, const AdamRule& rule,
            const float* scale) const override {
    launch_adam(launch_, tensors, rule, scale);
  }
  void softmax_sums(const LogitsJob& job, int64_t rows) const override {
    launch_softmax_sums(launch_, job, rows);
  }
  void softmax_gradient(const LogitsGradientJob& job, int64_t rows) const override {
    launch_softmax_gradient(launch_, job, rows);
  }
  void rms_norm(const RmsNormJob& job, int64_t rows) const override {
    launch_rms_norm(launch_, job, rows);
  }
  void rms_norm_backward(const RmsNormJob& job, int64_t rows, float* parts) const override {
    launch_rms_norm_backward(launch_, job, rows, parts);
  }
  void layer_norm(const LayerNormJob& job, int64_t rows) const override {
    launch_layer_norm(launch_, job, rows);
  }
  void layer_norm_backward(const LayerNormJob& job, int64_t rows, float* parts) const override {
    launch_layer_norm_backward(launch_, job, rows, parts);
  }
  void rotary(const RotaryJob& job) const override { launch_rotary(launch_, job); }
  void gate(const GateJob& job, int64_t count) const override {
    launch_elementwise<GateKernel>(launch_, job, count);
  }
  void gate_backward(const GateJob& job, int64_t count) const override {
    launch_elementwise<GateBackwardKernel>(launch_, job, count);
  }
  void gelu(const GeluJob& job, int64_t count) const override {
    launch_elementwise<GeluKernel>(launch_, job, count);
  }
  void gelu_backward(const GeluJob& job, int64_t count) const override {
    launch_elementwise<GeluBackwardKernel>(launch_, job, count);
  }

 private:
  Launch launch_;
};

}  // namespace cleave::inline kernels
