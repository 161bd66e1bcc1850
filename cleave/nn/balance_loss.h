#pragma once
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace cleave::inline nn {

using at::Tensor;

/// The auxiliary loss of a model with experts.
struct BalanceOptions {
  int64_t num_experts = 0;
  int64_t top_k = 0;       ///< experts of a token
  double coefficient = 0;  ///< its factor in the loss
};

/// The auxiliary loss of one micro-batch, which balances the experts: E sum_e f_e p_e over E
/// experts. f_e is the number of tokens that have expert e, p_e the sum of its probabilities, both
/// over all tokens of all layers with experts, divided by the number of these tokens. Padding does
/// not count. Source: transformers' load_balancing_loss_func; Fedus et al., arXiv:2101.03961.
///
/// f has no gradient, so the gradient of every token's probability of expert e is E f_e divided by
/// the number of tokens. Forward adds up f and p; a pipeline passes the sums from stage to stage.
/// close() ends forward, and in backward each layer adds its own part of the gradient. So a layer
/// that is recomputed in backward counts once, and no stage waits longer than without this loss.
class BalanceLoss : public std::enable_shared_from_this<BalanceLoss> {
 public:
  /// `weight` times the coefficient is this loss's factor in the sum that backward starts from.
  BalanceLoss(const BalanceOptions& options, double weight, at::Device device);

  /// The probabilities [N, E] of a layer's tokens, to which backward adds the gradient of this
  /// loss. `mask`: bool, of N elements, true for the tokens that count; undefined: all. Backward
  /// throws Error(kUsage) before close().
  [[nodiscard]] Tensor with_gradient(const Tensor& probabilities, const Tensor& mask);
  /// Counts the `experts` [N, top_k] that these tokens have. Does nothing after close().
  void count(const Tensor& probabilities, const Tensor& experts, const Tensor& mask);

  /// [2, E] fp64: the tokens of each expert and the sums of their probabilities, so far.
  [[nodiscard]] const Tensor& sums() const { return sums_; }
  /// Sets the sums of earlier layers, to which the next layers add.
  void resume(const Tensor& sums) { sums_ = sums; }
  /// Ends forward: these are the sums of all layers.
  void close(const Tensor& sums);

  /// The loss, and its summand weight * coefficient * loss, after close(). fp64 numbers without
  /// gradients.
  [[nodiscard]] Tensor value() const;
  [[nodiscard]] Tensor summand() const;

 private:
  /// Tokens of all layers. A batch of padding has none, and then no loss.
  [[nodiscard]] Tensor num_tokens() const;

  BalanceOptions options_;
  double factor_;
  Tensor sums_;
  Tensor gradient_;  // [E], of a token's probabilities; undefined before close()
};

}  // namespace cleave::inline nn
