#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

// Loops over rows of numbers, compiled for several instruction sets; the best one that the CPU
// supports runs. `void` pointers are to bf16 if is_bf16, else to fp32. Arithmetic is in fp32.

/// y = x / rms(x) (weight + offset) for rows [begin, end) of [.., width]. `scales` [rows] receives
/// 1 / rms. With `added`, x + added is normed instead, rounded to their type, and written to `sum`.
struct RmsNormJob {
  int64_t width = 0;
  bool is_bf16 = false;
  double eps = 0;
  float offset = 0;
  const void *x = nullptr, *weight = nullptr;
  void* y = nullptr;
  float* scales = nullptr;
  const void* dy = nullptr;  // backward's
  void* dx = nullptr;
  const void* added = nullptr;
  void* sum = nullptr;
  const void* dsum = nullptr;  // backward's, nullptr or another gradient of x, added to dx
  [[no_unique_address]] NotStored not_stored{};
};
void rms_norm_rows(const RmsNormJob& job, int64_t begin, int64_t end);
/// Computes dx, and adds the rows' part of the weight gradient to `dweight` [width].
void rms_norm_backward_rows(const RmsNormJob& job, int64_t begin, int64_t end, float* dweight);

/// y = silu(gate) up for elements [begin, end).
struct GateJob {
  bool is_bf16 = false;
  const void *gate = nullptr, *up = nullptr;
  void* y = nullptr;
  const void* dy = nullptr;  // backward's
  void *dgate = nullptr, *dup = nullptr;
  [[no_unique_address]] NotStored not_stored{};
};
void gate_range(const GateJob& job, int64_t begin, int64_t end);
void gate_backward_range(const GateJob& job, int64_t begin, int64_t end);

/// y = x sigmoid(2 u) = x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), for elements
/// [begin, end).
struct GeluJob {
  bool is_bf16 = false;
  const void* x = nullptr;
  void* y = nullptr;
  const void* dy = nullptr;  // backward's
  void* dx = nullptr;
  [[no_unique_address]] NotStored not_stored{};
};
void gelu_range(const GeluJob& job, int64_t begin, int64_t end);
void gelu_backward_range(const GeluJob& job, int64_t begin, int64_t end);

/// y = (x - mean(x)) / sqrt(variance(x) + eps) weight + bias for rows [begin, end) of [.., width].
/// `means` and `scales` [rows] receive the mean and 1 / sqrt(variance + eps).
struct LayerNormJob {
  int64_t width = 0;
  bool is_bf16 = false;
  double eps = 0;
  const void *x = nullptr, *weight = nullptr, *bias = nullptr;
  void* y = nullptr;
  float *means = nullptr, *scales = nullptr;
  const void* dy = nullptr;  // backward's
  void* dx = nullptr;
  const void* added = nullptr;
  void* sum = nullptr;
  const void* dsum = nullptr;  // backward's
  [[no_unique_address]] NotStored not_stored{};
};
void layer_norm_rows(const LayerNormJob& job, int64_t begin, int64_t end);
/// Computes dx, and adds the rows' part of the weight and bias gradients to `dweight` and `dbias`.
void layer_norm_backward_rows(const LayerNormJob& job, int64_t begin, int64_t end, float* dweight,
                              float* dbias);

/// (a, b) -> (a cos - b sin, b cos + a sin) for the two halves of each head of `num_heads` heads of
/// `width` elements; `direction` -1 is the inverse rotation. Heads need no alignment.
struct RotaryRow {
  int64_t num_heads = 0, width = 0;
  bool is_bf16 = false;
  float direction = 1;
  const void *cos = nullptr, *sin = nullptr;  // [width / 2]
  [[no_unique_address]] NotStored not_stored{};
};
/// Rotates one token: head h is read at x + h * x_stride and written at y + h * y_stride
/// (elements).
void rotary_row(const RotaryRow& row, const void* x, int64_t x_stride, void* y, int64_t y_stride);

/// For rows [begin, end) of logits [.., width]: the largest logit, and the sum of exp(z - largest),
/// which is 0 if all are -infinity.
struct LogitsJob {
  int64_t width = 0;
  bool is_bf16 = false;
  const void* logits = nullptr;
  float *largest = nullptr, *sums = nullptr;  // [rows]
  [[no_unique_address]] NotStored not_stored{};
};
void softmax_sums_rows(const LogitsJob& job, int64_t begin, int64_t end);

/// d loss / d logits for rows [begin, end): (exp(z - largest) / sum - spread - [column is target]
/// weight) factor.
struct LogitsGradientJob {
  int64_t width = 0;
  bool is_bf16 = false;
  const void* logits = nullptr;
  void* gradient = nullptr;
  const float *largest = nullptr, *sums = nullptr;  // [rows]
  const float* factor = nullptr;                    // [rows]; 0 gives zeros
  const int64_t* target = nullptr;                  // [rows], -1 if it is on another rank
  float spread = 0, weight = 1;
  [[no_unique_address]] NotStored not_stored{};
};
void softmax_gradient_rows(const LogitsGradientJob& job, int64_t begin, int64_t end);

/// y = sum + x in fp32, for elements [begin, end) of bf16 numbers x. `y` may be `sum`.
struct SumJob {
  bool is_sum_bf16 = false;
  const void* sum = nullptr;
  const uint16_t* x = nullptr;
  float* y = nullptr;
  [[no_unique_address]] NotStored not_stored{};
};
void sum_range(const SumJob& job, int64_t begin, int64_t end);

/// Largest magnitude of a row; NaN if the row has a NaN.
float largest_of_row(const float* x, int64_t width);

/// 128 + round(x * factor), ties to even, clamped to [-127, 127], for a row of `width` numbers; 128
/// for the padding up to `padded`.
void int8_row(const float* x, int64_t width, int64_t padded, float factor, uint8_t* to);

/// Sum of x[i]^2 for i in [begin, end), with squares and sums in fp64.
double sum_of_squares_range(const void* x, bool is_bf16, int64_t begin, int64_t end);

}  // namespace cleave::inline kernels
