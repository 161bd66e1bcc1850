#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/layout/split.h"
#include "cleave/nn/layer_options.h"
#include "cleave/nn/linear.h"

namespace cleave::inline nn {

/// The experts of each token.
struct Routing {
  Tensor experts;  ///< [N, top_k] int64, by falling probability
  Tensor weights;  ///< [N, top_k] fp32; fp64 for fp64 logits
};

/// The softmax of each token's logits over all experts, in fp32 (fp64 for fp64 logits).
///
///   logits [N, experts]
Tensor router_probabilities(const Tensor& logits);

/// Chooses the top_k most probable experts of each token. The weights are their probabilities,
/// divided by their sum where `normalizes`. Source: transformers' MixtralTopKRouter and
/// Qwen3MoeTopKRouter.
///
///   probabilities [N, experts]
Routing route(const Tensor& probabilities, int64_t top_k, bool normalizes);

/// Which tokens the ranks have that share out experts.
enum class RankTokens : uint8_t {
  kOwn,   ///< each rank has different tokens
  kSame,  ///< all ranks have the same tokens; without gradients
};

/// Names of an expert's projections in paths and files.
struct ExpertNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

struct ExpertsOptions {
  int64_t hidden = 0;
  int64_t intermediate = 0;  ///< of one expert
  int64_t num_experts = 0;
  int64_t top_k = 0;       ///< experts of a token
  bool normalizes = true;  ///< the weights of a token's experts sum to 1
  Activation activation = Activation::kSilu;
  ExpertNames names{};
  Init init = Init::normal(0.02);
};

/// One expert: down(act(gate(x)) * up(x)). Under tp its projections have the styles Colwise,
/// Colwise and Rowwise, and its result stays a Partial.
///
///   x [N, D]   result [N, D]
class Expert : public Layer {
 public:
  explicit Expert(const ExpertsOptions& options);
  /// Whether each rank has a part of the projections.
  [[nodiscard]] bool is_split() const;
  /// Whether a wrap is around its calls or those of a projection.
  [[nodiscard]] bool is_wrapped() const;
  void check_split(const Axis& axis) override;

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  Activation activation_;
  std::unique_ptr<Linear> gate_, up_, down_;
};

/// A mixture of experts in place of an Mlp: each token is the weighted sum of its top_k experts. No
/// expert has a limit of tokens.
///
///   x [.., D]   result [.., D]
///
/// Under tp every rank has a part of every expert. The input is Fanout: all ranks compute the same
/// logits and choose the same experts, but each has only a part of the experts' results, so that
/// its gradient of the weights, and of the router, is a partial sum like that of x. The result is
/// Partial inside the layer and Replicate at the module boundary, unless the plan sets another
/// output.
///
/// Under expert parallelism the ranks of an axis ep, which have different tokens, share out the
/// experts: each has some of them, whole, or under tp its part of each. The router is on all. Rows
/// are sent to the ranks of their experts, and their results come back. Forward and backward are
/// collective over ep. Where the ranks have the same tokens (inference), each runs the rows of its
/// own experts, and all get all results.
///
/// With a Context::balance it counts its tokens there, and backward adds the gradient of that loss.
/// On a Fanout, only rank 0 adds it, because gradients are partial sums.
///
/// While gradients are recorded, and if they have wraps, experts without tokens run on zero rows:
/// their gradients are zeros, and every rank calls the collectives of the wraps (FSDP).
class Experts : public Layer {
 public:
  explicit Experts(const ExpertsOptions& options);
  void check_split(const Axis& axis) override;
  /// Shares out the experts over `ep`, as evenly as possible, in their order. `copies`: the
  /// data-parallel ranks that have the same experts. Call it before there is memory. Throws
  /// Error(kShape) for fewer experts than ranks.
  void share_out(const Axis& ep, const Axis& copies, RankTokens tokens = RankTokens::kOwn);
  /// The ranks that share out the experts and have the same tokens; one rank if there are none.
  [[nodiscard]] Axis same_tokens() const { return tokens_ == RankTokens::kSame ? ep_ : Axis(); }
  /// The number of experts of all ranks together.
  [[nodiscard]] int64_t num_experts() const { return std::ssize(experts_); }
  /// Gives the logits of the experts.
  [[nodiscard]] const Linear& router() const { return gate_; }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override;

 private:
  [[nodiscard]] bool is_split() const { return experts_.front()->is_split(); }
  [[nodiscard]] Routing routed(const DTensor& logits, const Context& context) const;
  /// exchanged() among ranks that have the same rows.
  [[nodiscard]] Tensor joined(const DTensor& x, const Tensor& rows,
                              const std::vector<int64_t>& counts, const Context& context) const;
  /// The results of this rank's experts for rows that are sorted by expert.
  [[nodiscard]] Tensor results(const DTensor& x, const Tensor& rows,
                               const std::vector<int64_t>& counts, const Context& context) const;
  /// The same of all experts for this rank's rows.
  [[nodiscard]] Tensor exchanged(const DTensor& x, const Tensor& rows,
                                 const std::vector<int64_t>& counts, const Context& context) const;
  /// Whether an expert of any rank has trained parameters.
  [[nodiscard]] bool is_trained() const;

  int64_t top_k_;
  bool normalizes_;
  Linear gate_;
  std::vector<std::unique_ptr<Expert>> experts_;  // of all ranks of ep
  Axis ep_;
  RankTokens tokens_ = RankTokens::kOwn;
  SplitPtr shares_;  // of the experts over ep
  Range own_;
};

/// Experts::same_tokens() of a model's layers.
[[nodiscard]] Axis same_tokens_axis(Layer& model);

}  // namespace cleave::inline nn
