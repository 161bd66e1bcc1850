#include "cleave/model/decoder/decoder.h"

#include <algorithm>
#include <array>

#include "cleave/model/decoder/fused.h"
#include "cleave/model/decoder/head.h"
#include "cleave/model/flops.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/experts.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"

namespace cleave::inline model {
namespace {

std::unique_ptr<Layer> make_attention(const DecoderConfig& c, const DecoderLayer& layer) {
  const AttentionOptions options{
      .hidden = c.facts.hidden,
      .num_heads = c.facts.num_heads,
      .num_kv_heads = c.facts.num_kv_heads,
      .head_dim = c.head_dim,
      .qkv_bias = c.qkv_bias,
      .out_bias = c.out_bias,
      .window = layer.window,
      .dropout = c.attention_dropout,
      .score_divisor = c.score_divisor,
      .soft_cap = c.score_cap,
      .rotary = layer.has_rotary ? std::optional(layer.rotary.value_or(c.rotary)) : std::nullopt,
      .qk_norm = c.qk_norm,
      .norm_eps = c.norm_eps,
      .norm_offset = c.norm_offset,
      .init = Init::normal(c.init_range),
      .out_init = Init::normal(c.init_range)};
  if (c.is_fused) return std::make_unique<FusedAttention>(options);
  return std::make_unique<Attention>(options);
}

std::unique_ptr<Layer> make_experts(const DecoderConfig& c) {
  ExpertsOptions options{.hidden = c.facts.hidden,
                         .intermediate = c.experts.intermediate,
                         .num_experts = c.experts.num_experts,
                         .top_k = c.experts.top_k,
                         .normalizes = c.experts.normalizes,
                         .activation = c.activation,
                         .names = {},
                         .init = Init::normal(c.init_range)};
  if (c.experts.has_mixtral_names) options.names = {.gate = "w1", .up = "w3", .down = "w2"};
  return std::make_unique<Experts>(options);
}

/// The name of a block's experts.
const char* experts_name(const ExpertsConfig& c) {
  return c.has_mixtral_names ? "block_sparse_moe" : "mlp";
}

std::unique_ptr<Layer> make_mlp(const DecoderConfig& c, const DecoderLayer& layer) {
  if (layer.has_experts) return make_experts(c);
  const MlpOptions options{.hidden = c.facts.hidden,
                           .intermediate = c.intermediate,
                           .bias = c.mlp_bias,
                           .activation = c.activation,
                           .init = Init::normal(c.init_range),
                           .out_init = Init::normal(c.init_range)};
  if (c.is_fused) return std::make_unique<FusedMlp>(options);
  return std::make_unique<Mlp>(options);
}

/// x + attention(norm(x)), then x + mlp(norm(x)); or with norms of the outputs x +
/// norm(attention(x)), then x + norm(mlp(x)); or with both. x [B, T, D].
class DecoderBlock : public Layer {
 public:
  DecoderBlock(const DecoderConfig& c, const DecoderLayer& layer)
      : norms_(c.norms),
        attention_norm_(c.facts.hidden, c.norm_eps, c.norm_offset),
        self_attn_(make_attention(c, layer)),
        mlp_norm_(c.facts.hidden, c.norm_eps, c.norm_offset),
        mlp_(make_mlp(c, layer)) {
    const char* mlp_name = layer.has_experts ? experts_name(c.experts) : "mlp";
    if (norms_ == BlockNorms::kOutputs) {
      add("self_attn", *self_attn_, "attention");
      add("post_attention_layernorm", attention_norm_);
      add(mlp_name, *mlp_, "feed_forward");
      add("post_feedforward_layernorm", mlp_norm_);
      return;
    }
    add("input_layernorm", attention_norm_, "attention_norm");
    add("self_attn", *self_attn_, "attention");
    if (norms_ == BlockNorms::kInputs) {
      add("post_attention_layernorm", mlp_norm_, "ffn_norm");
      add(mlp_name, *mlp_, "feed_forward");
      return;
    }
    for (auto* norm : {&attention_output_norm_, &mlp_output_norm_}) {
      *norm = std::make_unique<RmsNorm>(c.facts.hidden, c.norm_eps, c.norm_offset);
    }
    add("post_attention_layernorm", *attention_output_norm_);
    add("pre_feedforward_layernorm", mlp_norm_, "ffn_norm");
    add(mlp_name, *mlp_, "feed_forward");
    add("post_feedforward_layernorm", *mlp_output_norm_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    if (norms_ == BlockNorms::kOutputs) {
      const DTensor h = x + attention_norm_((*self_attn_)(x, context), context);
      return h + mlp_norm_((*mlp_)(h, context), context);
    }
    const DTensor h = x + normed(attention_output_norm_,
                                 (*self_attn_)(attention_norm_(x, context), context), context);
    return h + normed(mlp_output_norm_, (*mlp_)(mlp_norm_(h, context), context), context);
  }

 private:
  static DTensor normed(const std::unique_ptr<RmsNorm>& norm, const DTensor& x,
                        const Context& context) {
    return norm ? (*norm)(x, context) : x;
  }

  BlockNorms norms_;
  RmsNorm attention_norm_;
  std::unique_ptr<Layer> self_attn_;
  RmsNorm mlp_norm_;
  std::unique_ptr<Layer> mlp_;
  std::unique_ptr<RmsNorm> attention_output_norm_, mlp_output_norm_;  // kBoth: these too
};

/// The modules that Hugging Face names "model.*": ids to final hidden states.
class DecoderTrunk : public LayerGroup {
 public:
  explicit DecoderTrunk(const DecoderConfig& c)
      : embed_tokens_({.num_embeddings = c.facts.vocab_size,
                       .embedding_dim = c.facts.hidden,
                       .init = Init::normal(c.init_range),
                       .padding_idx = c.facts.pad_id,
                       .scale = c.embedding_scale}),
        norm_(c.facts.hidden, c.norm_eps, c.norm_offset) {
    add("embed_tokens", embed_tokens_, "tok_embeddings");
    for (const DecoderLayer& layer : c.layers) {
      blocks_.push_back(std::make_unique<DecoderBlock>(c, layer));
      add(str("layers.", blocks_.size() - 1), *blocks_.back());
    }
    add("norm", norm_);
  }

  [[nodiscard]] const std::shared_ptr<Parameter>& embedding_weight() const {
    return embed_tokens_.weight();
  }

 private:
  Embedding embed_tokens_;
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  RmsNorm norm_;
};

class DecoderModel : public Model {
 public:
  DecoderModel(const Json& json, const DecoderConfig& config)
      : Model(json, config.facts),
        is_fused_(config.is_fused),
        has_experts_(std::ranges::any_of(config.layers, &DecoderLayer::has_experts)),
        has_mlps_(!std::ranges::all_of(config.layers, &DecoderLayer::has_experts)),
        experts_(config.experts),
        qk_norm_(config.qk_norm),
        rotary_switch_(config.rotary.scaling == RotaryOptions::Scaling::kLongRope
                           ? config.rotary.original_positions
                           : 0),
        task_(config.task),
        model_(config),
        head_(
            make_decoder_head(config.facts, config.task,
                              {.init_range = config.init_range,
                               .soft_cap = config.logit_cap,
                               .tied_weight = config.tied ? model_.embedding_weight() : nullptr})) {
    add("model", model_, "");
    add(head_name(task_), *head_, "output");
  }

  [[nodiscard]] std::string task() const override { return task_; }
  /// The output matrix of a language model, of which a classifier has the layers.
  [[nodiscard]] bool ignores(const std::string& tensor) const override {
    return !is_lm() && tensor == "lm_head.weight";
  }
  [[nodiscard]] double train_flops_per_token(int64_t seq_len) override {
    const std::array<Layer*, 1> of_all_tokens{&model_};
    return is_lm() ? Model::train_flops_per_token(seq_len) : train_flops_of(of_all_tokens, seq_len);
  }

  [[nodiscard]] Plan plan(bool sequence_parallel) const override {
    const Placement between = sequence_parallel ? Placement(Shard{1}) : Placement(Replicate{});
    Plan plan = {
        {"model.embed_tokens", Rowwise{.output = between}},
        {str("model.layers.*.self_attn.", is_fused_ ? "qkv" : "{q,k,v}", "_proj"), Colwise{}},
        {"model.layers.*.self_attn.o_proj", Rowwise{.output = between}},
    };
    // The loss reads sharded logits.
    if (is_lm()) plan.emplace_back("lm_head", Colwise{.output = Shard{-1}});
    if (has_mlps_) {
      const char* columns = is_fused_ ? "gate_up" : "{gate,up}";
      plan.emplace_back(str("model.layers.*.mlp.", columns, "_proj"), Colwise{});
      plan.emplace_back("model.layers.*.mlp.down_proj", Rowwise{.output = between});
    }
    if (has_experts_) {
      const std::string experts = str("model.layers.*.", experts_name(experts_));
      const bool is_mixtral = experts_.has_mixtral_names;
      plan.emplace_back(experts, PrepareModuleOutput{.output = {}, .desired = between});
      plan.emplace_back(experts + ".experts.*." + (is_mixtral ? "{w1,w3}" : "{gate,up}_proj"),
                        Colwise{});
      plan.emplace_back(experts + ".experts.*." + (is_mixtral ? "w2" : "down_proj"), Rowwise{});
    }
    if (qk_norm_ == QkNorm::kAllHeads) {
      plan.emplace_back("model.layers.*.self_attn.{q,k}_norm", Colwise{});
    }
    return plan;
  }
  [[nodiscard]] int64_t rotary_switch() const { return rotary_switch_; }

  void check_trainable() const override {
    const Json& json = config();
    if (has_experts_ && json.number_or("router_jitter_noise", 0) != 0) {
      json.at("router_jitter_noise").fail("it is not supported in training; expected 0");
    }
  }
  /// A recording cannot contain a wait: with experts, the host waits for the number of rows of each
  /// expert.
  [[nodiscard]] bool can_record_decoding() const override { return !has_experts_; }
  [[nodiscard]] std::optional<BalanceOptions> balance() const override {
    // transformers adds the loss only if output_router_logits is true; its default is false. Its
    // classifiers never do.
    const bool has_loss = is_lm() && config().bool_or("output_router_logits", false);
    if (!has_experts_ || !has_loss) return std::nullopt;
    const double coefficient = config().number_or("router_aux_loss_coef", 0.001);
    if (coefficient == 0) return std::nullopt;
    return BalanceOptions{
        .num_experts = experts_.num_experts, .top_k = experts_.top_k, .coefficient = coefficient};
  }

 private:
  [[nodiscard]] bool is_lm() const { return task_ == "lm"; }

  bool is_fused_;
  bool has_experts_, has_mlps_;
  ExpertsConfig experts_;
  QkNorm qk_norm_;
  int64_t rotary_switch_;
  std::string task_;
  DecoderTrunk model_;
  std::unique_ptr<Layer> head_;
};

}  // namespace

std::unique_ptr<Model> make_decoder(const Json& json, const DecoderConfig& config) {
  return std::make_unique<DecoderModel>(json, config);
}

int64_t rotary_switch(const Model& model) {
  const auto* decoder = dynamic_cast<const DecoderModel*>(&model);
  return decoder == nullptr ? 0 : decoder->rotary_switch();
}

}  // namespace cleave::inline model
