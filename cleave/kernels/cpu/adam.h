#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// One step of Adam or AdamW over a flat array of weights in one pass, in fp32, compiled for
/// several instruction sets. Results are bit-identical however the array is sharded.
///
///   g = gradient gradient_scale (+ weight_decay w without `is_decoupled`)
///   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
///   w = w (1 - lr weight_decay with `is_decoupled`) - lr / (1 - beta1^t) m / (sqrt(v / (1 -
///   beta2^t)) + eps)
///
/// Source: Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter, arXiv:1711.05101.
struct AdamRun {
  float* weight = nullptr;
  const void* gradient = nullptr;  ///< fp32, or bf16 with is_bf16_gradient
  bool is_bf16_gradient = false;
  float *exp_avg = nullptr, *exp_avg_sq = nullptr;
  uint16_t* bf16_weight = nullptr;  ///< if set, also receives the new weights, as bf16
  [[no_unique_address]] NotStored not_stored{};
};
/// The numbers of a step, the same for all weights of a group.
struct AdamRule {
  bool is_decoupled = true;  ///< AdamW
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, gradient_scale = 1;
  int64_t step = 1;  ///< t: 1 at the first
};
void adam_range(const AdamRun& run, const AdamRule& rule, int64_t begin, int64_t end);

}  // namespace cleave::inline kernels
