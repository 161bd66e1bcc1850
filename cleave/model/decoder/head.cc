#include "cleave/model/decoder/head.h"

#include <ATen/ATen.h>

namespace cleave::inline model {
namespace {

class LastTokenClassifier : public Layer {
 public:
  explicit LastTokenClassifier(const LinearOptions& options) : score_(options) {
    add("", score_);  // the layer's own path names the weight
  }

 protected:
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override {
    return x.placement().is_shard() ? std::optional<Placement>(Replicate{}) : std::nullopt;
  }

  DTensor forward(const DTensor& x, const Context& context) override {
    return score_(mine(x.with(last_tokens(x.local(), context.key_mask))), context);
  }

 private:
  /// The last token of each sequence: x [B, T, D] to [B, D].
  static Tensor last_tokens(const Tensor& x, const Tensor& key_mask) {
    if (!key_mask.defined()) return x.select(1, -1);
    const auto options = x.options().dtype(at::kLong);
    const Tensor places = key_mask.to(options).mul(at::arange(x.size(1), options)).argmax(1);
    return x.index({at::arange(x.size(0), options), places});
  }

  Linear score_;
};

}  // namespace

std::unique_ptr<Layer> make_decoder_head(const ModelFacts& facts, const std::string& task,
                                         const DecoderHeadOptions& options) {
  const bool is_lm = task == "lm";
  const LinearOptions linear{
      .in_features = facts.hidden,
      .out_features = is_lm ? facts.vocab_size : static_cast<int64_t>(facts.labels.size()),
      .bias = false,
      .init = Init::normal(options.init_range),
      .soft_cap = is_lm ? options.soft_cap : 0,
      .least_bits = 8};
  if (!is_lm) return std::make_unique<LastTokenClassifier>(linear);
  auto output = std::make_unique<Linear>(linear);
  if (options.tied_weight) output->tie_weight(options.tied_weight);
  return output;
}

}  // namespace cleave::inline model
