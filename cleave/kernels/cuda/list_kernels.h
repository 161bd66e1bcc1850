#pragma once
// Gradient norms and Adam over many tensors with few launches.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

/// Tensors of one launch: a launch has at most 4 KiB of arguments. Each block has a part of one
/// tensor, of at most kListPart elements.
template <class Listed>
struct TensorList {
  static constexpr size_t kMost = 3600 / (sizeof(Listed) + sizeof(int64_t));
  int num_tensors = 0;
  Listed tensors[kMost]{};
  int64_t first_block[kMost + 1]{};  ///< of each tensor; then the number of blocks
};

/// The part of a tensor that a block of a TensorList's launch has.
struct ListPart {
  int tensor = 0;
  int64_t begin = 0, end = 0;
};
template <class Listed>
CLEAVE_DEVICE ListPart part_of(const TensorList<Listed>& list, int64_t block) {
  int tensor = 0;
  while (block >= list.first_block[tensor + 1]) ++tensor;
  const int64_t begin = (block - list.first_block[tensor]) * kListPart;
  const int64_t count = list.tensors[tensor].count;
  const int64_t end = begin + kListPart;
  return {tensor, begin, end < count ? end : count};
}

/// parts[block] = sum of squares of the block's part.
struct SquaresKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const TensorList<SquaresOf>& list,
                                double* parts) const {
    const ListPart part = part_of(list, block.index());
    const SquaresOf& t = list.tensors[part.tensor];
    const double own = t.is_bf16 ? own_squares(block, static_cast<const uint16_t*>(t.data), part)
                                 : own_squares(block, static_cast<const float*>(t.data), part);
    const double sum = sum_over_block(block, own);
    if (block.thread() == 0) parts[block.index()] = sum;
  }

 private:
  template <class Block, class T>
  CLEAVE_DEVICE static double own_squares(const Block& block, const T* data, const ListPart& part) {
    const bool is_aligned = is_quad_aligned(data);
    double sum = 0;
    const int64_t stride = int64_t{kQuad} * block.threads();
    for (int64_t i = part.begin + int64_t{kQuad} * block.thread(); i < part.end; i += stride) {
      const Quad quad = load_quad(data + i, part.end - i, is_aligned);
      for (const float v : quad.at) sum += double{v} * double{v};
    }
    return sum;
  }
};

/// sums[tensor] = the sum of its parts; a block for each tensor.
struct SumPartsKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const TensorList<SquaresOf>& list,
                                const double* parts, double* sums) const {
    const int64_t end = list.first_block[block.index() + 1];
    double own = 0;
    for (int64_t i = list.first_block[block.index()] + block.thread(); i < end;
         i += block.threads()) {
      own += parts[i];
    }
    const double sum = sum_over_block(block, own);
    if (block.thread() == 0) sums[block.index()] = sum;
  }
};

/// The numbers of an AdamRule that the kernel multiplies with.
struct AdamNumbers {
  explicit AdamNumbers(const AdamRule& rule)
      : is_decoupled(rule.is_decoupled),
        added_decay(narrow(rule.is_decoupled ? 0 : rule.weight_decay)),
        kept(narrow(rule.is_decoupled ? 1 - rule.lr * rule.weight_decay : 1)),
        beta1(narrow(rule.beta1)),
        other_beta1(narrow(1 - rule.beta1)),
        beta2(narrow(rule.beta2)),
        other_beta2(narrow(1 - rule.beta2)),
        step_size(narrow(rule.lr / (1 - std::pow(rule.beta1, rule.step)))),
        root_scale(narrow(1 / std::sqrt(1 - std::pow(rule.beta2, rule.step)))),
        eps(narrow(rule.eps)) {}
  bool is_decoupled;
  float added_decay, kept, beta1, other_beta1, beta2, other_beta2, step_size, root_scale, eps;

 private:
  static float narrow(double value) { return static_cast<float>(value); }
};

/// The operations and their order are those of kernels/cpu/adam.cc, so that both have the same bits
/// where the CPU multiplies and adds with one rounding.
struct AdamKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const TensorList<AdamTensor>& list,
                                const AdamNumbers& rule, const float* scale) const {
    const ListPart part = part_of(list, block.index());
    const AdamTensor& t = list.tensors[part.tensor];
    const auto* narrow = static_cast<const uint16_t*>(t.gradient);
    const auto* wide = static_cast<const float*>(t.gradient);
    const bool is_aligned = is_quad_aligned(t.weight) && is_quad_aligned(t.exp_avg) &&
                            is_quad_aligned(t.exp_avg_sq) && is_quad_aligned(t.bf16_weight) &&
                            (t.is_bf16_gradient ? is_quad_aligned(narrow) : is_quad_aligned(wide));
    const int64_t stride = int64_t{kQuad} * block.threads();
    for (int64_t i = part.begin + int64_t{kQuad} * block.thread(); i < part.end; i += stride) {
      const int64_t count = part.end - i;
      const Quad g = t.is_bf16_gradient ? load_quad(narrow + i, count, is_aligned)
                                        : load_quad(wide + i, count, is_aligned);
      Quad w = load_quad(t.weight + i, count, is_aligned);
      Quad m = load_quad(t.exp_avg + i, count, is_aligned);
      Quad v = load_quad(t.exp_avg_sq + i, count, is_aligned);
      for (int k = 0; k < kQuad; ++k) step(rule, g.at[k] * *scale, w.at[k], m.at[k], v.at[k]);
      store_quad(w, t.weight + i, count, is_aligned);
      store_quad(m, t.exp_avg + i, count, is_aligned);
      store_quad(v, t.exp_avg_sq + i, count, is_aligned);
      if (t.bf16_weight != nullptr) store_quad(w, t.bf16_weight + i, count, is_aligned);
    }
  }

 private:
  CLEAVE_DEVICE static void step(const AdamNumbers& rule, float g, float& w, float& m, float& v) {
    if (!rule.is_decoupled) g = std::fma(rule.added_decay, w, g);
    m = std::fma(rule.beta1, m, rule.other_beta1 * g);
    v = std::fma(rule.beta2, v, rule.other_beta2 * (g * g));
    const float root = std::fma(std::sqrt(v), rule.root_scale, rule.eps);
    w = std::fma(-rule.step_size, m / root, w * rule.kept);
  }
};

/// Calls run(list) for lists that together have all tensors, in order.
template <class Listed, class Run>
void for_lists(std::span<const Listed> tensors, const Run& run) {
  static_assert(std::is_trivially_destructible_v<Listed>);
  using List = TensorList<Listed>;
  for (size_t begin = 0; begin < tensors.size(); begin += List::kMost) {
    List list;
    list.num_tensors = static_cast<int>(std::min(List::kMost, tensors.size() - begin));
    list.first_block[0] = 0;
    for (int i = 0; i < list.num_tensors; ++i) {
      // As a launch copies its arguments: bytes, since what holds raw pointers has no copies.
      std::memcpy(static_cast<void*>(&list.tensors[i]), &tensors[begin + static_cast<size_t>(i)],
                  sizeof(Listed));
      list.first_block[i + 1] = list.first_block[i] + parts_of(list.tensors[i].count, kListPart);
    }
    run(list);
  }
}

}  // namespace cleave::inline kernels
