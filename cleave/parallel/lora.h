#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/nn/layer.h"

namespace cleave::inline parallel {

/// Low-rank adapters (LoRA): which Linear layers get a trained branch, and of which size. The
/// values of PEFT's LoraConfig.
struct LoraOptions {
  int64_t rank = 16;
  double alpha = 32;
  /// The branch is scaled by alpha / sqrt(rank) instead of alpha / rank (rsLoRA). Source:
  /// Kalajdzievski, arXiv:2312.03732.
  bool is_rank_stabilized = false;
  double dropout = 0;  ///< of the branch's input while training
  /// The rows of the sums of weights and products have trained magnitudes (DoRA). Source: Liu and
  /// others, arXiv:2402.09353.
  bool is_dora = false;
  /// The frozen weights of the Linear layers of blocks, without the routers of experts, are kept in
  /// this form; all others, and without a form all, in the type of forward.
  std::optional<QuantizedForm> base_form{};
  /// Ends of layers' paths ("q_proj", "mlp.up_proj"), or kAllLinear.
  std::vector<std::string> targets{std::string(kAllLinear)};
  /// Ends of the paths of layers whose own weights are trained too, such as a new head: the
  /// modules_to_save of PEFT.
  std::vector<std::string> trained_layers{};

  /// Stands for all Linear layers of the model's blocks except the routers of experts. The head is
  /// in no block. A router has only as many outputs as there are experts.
  static constexpr std::string_view kAllLinear = "all-linear";
  [[nodiscard]] double scale() const;
  /// Whether all values except the layers are equal.
  [[nodiscard]] bool has_values_of(const LoraOptions& other) const {
    return rank == other.rank && alpha == other.alpha &&
           is_rank_stabilized == other.is_rank_stabilized && dropout == other.dropout &&
           is_dora == other.is_dora && base_form == other.base_form;
  }
  /// The flags of `cleave train` that give these values, without the targets: "--lora 16
  /// --lora-alpha 32".
  [[nodiscard]] std::string flags() const;
  /// "LoRA of rank 16"
  [[nodiscard]] std::string describe() const;
};

/// The values of `cleave train --lora-base`: the name of a form, or "dtype" without one. Throws
/// Error(kUsage) for another name.
std::string_view base_name(const std::optional<QuantizedForm>& form);
std::optional<QuantizedForm> base_form_from_name(std::string_view name);

/// The paths of a model's head for classes, which PEFT trains beside the adapters of a classifier;
/// none if the model has no such head.
std::vector<std::string> classification_head(Layer& model);

/// Freezes a model, which has no memory yet, but for options.trained_layers, and attaches adapters
/// to the Linear layers that `options` names; forward reads the frozen weights in the type
/// `compute`. `sequence`: the model's layers in call order. Call it before the model is
/// parallelized; parallelize() does.
///
/// Throws Error(kUsage) for a target that is no Linear layer, listing those of the model, or whose
/// weight is tied to another layer or trained itself, or that belongs to experts if there is
/// dropout; Error(kShape) for a rank that is larger than a matrix's width.
void attach_lora(Layer& model, const std::vector<Layer*>& sequence, const LoraOptions& options,
                 at::ScalarType compute);

/// Allocates the magnitudes of adapters (DoRA) in `type` and sets them to the norms of the rows of
/// the frozen weights, which have memory. Collective over the ranks that shard rows, as
/// fill_quantized() (nn/quantized_leaf.h) is.
void start_magnitudes(Layer& model, at::ScalarType type);

}  // namespace cleave::inline parallel
