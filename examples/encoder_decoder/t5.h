// T5 v1.1 without dropout: an encoder, and a decoder whose blocks also read the encoder's output.
#pragma once
#include "cleave/cleave.h"

namespace encoder_decoder {

using namespace cleave;  // NOLINT(google-build-using-namespace)

// T5 does not divide the scores. Self-attention, which reads x, has a relative bias.
inline AttentionOptions attention_of(const ModelFacts& f, bool causal, const std::string& from) {
  AttentionOptions o{.hidden = f.hidden, .num_heads = f.num_heads, .num_kv_heads = f.num_heads};
  o.head_dim = f.hidden / f.num_heads;
  o.causal = causal;
  o.score_divisor = 1;
  o.keys_from = from;
  if (from.empty()) o.relative_bias = RelativeBiasOptions{.num_buckets = 32};
  return o;
}

// Self-attention, in the decoder also cross-attention, and a gated MLP; each adds to x.
class Block : public Layer {
 public:
  Block(const ModelFacts& f, bool is_decoder)
      : is_decoder_(is_decoder),
        self_(attention_of(f, /*causal=*/is_decoder, "")),
        cross_(attention_of(f, /*causal=*/false, "encoder")),
        norm_(f.hidden, 1e-6),
        cross_norm_(f.hidden, 1e-6),
        mlp_norm_(f.hidden, 1e-6),
        mlp_({f.hidden, 2 * f.hidden, false, true, Activation::kGeluTanh}) {
    add("norm", norm_);
    add("self", self_);
    if (is_decoder) add("cross_norm", cross_norm_);
    if (is_decoder) add("cross", cross_);
    add("mlp_norm", mlp_norm_);
    add("mlp", mlp_);
  }
  // Each half of the model has one table of relative positions.
  void tie_relative_bias(const Block& before) { self_.tie_relative_bias(before.self_); }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    Context own = context;  // with the mask of this half's tokens
    const std::string mask = is_decoder_ ? "decoder_mask" : "encoder_mask";
    own.key_mask = own.values.has(mask) ? own.values.at(mask).local() : Tensor();
    DTensor y = x + self_(norm_(x, own), own);
    if (is_decoder_) y = y + cross_(cross_norm_(y, own), own);
    return y + mlp_(mlp_norm_(y, own), own);
  }

 private:
  bool is_decoder_;
  Attention self_, cross_;
  RmsNorm norm_, cross_norm_, mlp_norm_;
  Mlp mlp_;
};

// Input: the encoder's ids [B, S]. Named values: decoder_ids [B, T]; optional encoder_mask [B, S]
// and decoder_mask [B, T], bool, false on padding. Result: logits [B, T, V].
class T5 : public Model {
 public:
  explicit T5(const Json& config) : Model(config) {
    encoder_norm_.set_output_name("encoder");      // the decoder's blocks read it
    decoder_embed_.set_input_name("decoder_ids");  // instead of the encoder's output
    decoder_embed_.tie_weight(embed_.weight());
    add("embed", embed_);
    add_blocks("encoder.", /*is_decoder=*/false);
    add("encoder_norm", encoder_norm_);
    add("decoder_embed", decoder_embed_);
    add_blocks("decoder.", /*is_decoder=*/true);
    add("decoder_norm", decoder_norm_);
    add("head", head_);
  }

 private:
  void add_blocks(const std::string& half, bool is_decoder) {
    for (int64_t i = 0; i < facts().num_layers; ++i) {
      blocks_.push_back(std::make_unique<Block>(facts(), is_decoder));
      if (i > 0) blocks_.back()->tie_relative_bias(*blocks_[blocks_.size() - 2]);
      add(half + std::to_string(i), *blocks_.back());
    }
  }
  Embedding embed_{{facts().vocab_size, facts().hidden}};
  Embedding decoder_embed_{{facts().vocab_size, facts().hidden}};
  RmsNorm encoder_norm_{facts().hidden, 1e-6}, decoder_norm_{facts().hidden, 1e-6};
  Linear head_{{facts().hidden, facts().vocab_size, /*bias=*/false}};
  std::vector<std::unique_ptr<Block>> blocks_;
};

// The losses of `num_steps` steps of training a small T5 to write random ids backwards, on the
// ranks of `layout`, whose plan follows from the model. Every layout sees the same batches.
std::vector<double> train(World& world, ParallelConfig layout, uint64_t num_steps);

}  // namespace encoder_decoder
