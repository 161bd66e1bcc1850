#include "cleave/model/llama/llama.h"

#include "cleave/model/llama/config.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"

namespace cleave {
namespace {

/// x + attention(norm(x)), then x + mlp(norm(x)). x [B, T, D].
class LlamaBlock : public Layer {
 public:
  explicit LlamaBlock(const LlamaConfig& c)
      : input_layernorm_(c.facts.hidden, c.norm_eps),
        self_attn_({.hidden = c.facts.hidden,
                    .num_heads = c.facts.num_heads,
                    .num_kv_heads = c.facts.num_kv_heads,
                    .head_dim = c.head_dim,
                    .qkv_bias = c.attention_bias,
                    .out_bias = c.attention_bias,
                    .rotary = c.rotary,
                    .init = Init::normal(c.init_range),
                    .out_init = Init::normal(c.init_range)}),
        post_attention_layernorm_(c.facts.hidden, c.norm_eps),
        mlp_({.hidden = c.facts.hidden,
              .intermediate = c.intermediate,
              .bias = c.mlp_bias,
              .activation = c.activation,
              .init = Init::normal(c.init_range),
              .out_init = Init::normal(c.init_range)}) {
    add("input_layernorm", input_layernorm_, "attention_norm");
    add("self_attn", self_attn_, "attention");
    add("post_attention_layernorm", post_attention_layernorm_, "ffn_norm");
    add("mlp", mlp_, "feed_forward");
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor h = x + self_attn_(input_layernorm_(x, context), context);
    return h + mlp_(post_attention_layernorm_(h, context), context);
  }

 private:
  RmsNorm input_layernorm_;
  Attention self_attn_;
  RmsNorm post_attention_layernorm_;
  Mlp mlp_;
};

/// The modules that Hugging Face names "model.*": ids to final hidden states.
class LlamaTrunk : public LayerGroup {
 public:
  explicit LlamaTrunk(const LlamaConfig& c)
      : embed_tokens_({.num_embeddings = c.facts.vocab_size,
                       .embedding_dim = c.facts.hidden,
                       .init = Init::normal(c.init_range),
                       .padding_idx = c.facts.pad_id}),
        norm_(c.facts.hidden, c.norm_eps) {
    add("embed_tokens", embed_tokens_, "tok_embeddings");
    for (int64_t i = 0; i < c.facts.num_layers; ++i) {
      layers_.push_back(std::make_unique<LlamaBlock>(c));
      add(str("layers.", i), *layers_.back());
    }
    add("norm", norm_);
  }

  [[nodiscard]] const std::shared_ptr<Parameter>& embedding_weight() const {
    return embed_tokens_.weight();
  }

 private:
  Embedding embed_tokens_;
  std::vector<std::unique_ptr<LlamaBlock>> layers_;
  RmsNorm norm_;
};

class Llama : public Model {
 public:
  Llama(const Json& json, const LlamaConfig& config)
      : Model(json, config.facts),
        model_(config),
        lm_head_({.in_features = config.facts.hidden,
                  .out_features = config.facts.vocab_size,
                  .bias = false,
                  .init = Init::normal(config.init_range)}) {
    if (config.tied) lm_head_.tie_weight(model_.embedding_weight());
    add("model", model_, "");
    add("lm_head", lm_head_, "output");
  }

  [[nodiscard]] Plan plan(bool sequence_parallel) const override {
    const Placement between = sequence_parallel ? Placement(Shard{1}) : Placement(Replicate{});
    return {
        {"model.embed_tokens", Rowwise{.output = between}},
        {"model.layers.*.self_attn.{q,k,v}_proj", Colwise{}},
        {"model.layers.*.self_attn.o_proj", Rowwise{.output = between}},
        {"model.layers.*.mlp.{gate,up}_proj", Colwise{}},
        {"model.layers.*.mlp.down_proj", Rowwise{.output = between}},
        {"lm_head", Colwise{.output = Shard{-1}}},  // the loss reads sharded logits
    };
  }

 private:
  LlamaTrunk model_;
  Linear lm_head_;
};

}  // namespace

std::unique_ptr<Model> make_llama(const Json& config) {
  return std::make_unique<Llama>(config, LlamaConfig::from_json(config));
}

}  // namespace cleave
