#include "cleave/model/gpt2/gpt2.h"
#include "cleave/model/other_settings.h"

namespace cleave::inline model {
namespace {

constexpr FactNames kNames{.hidden = "n_embd",
                           .num_layers = "n_layer",
                           .num_heads = "n_head",
                           .max_positions = "n_positions",
                           .default_positions = 1024,
                           .default_eos = 50256};

/// Refuses variants that transformers has and Cleave has not.
void refuse_unsupported(const Json& json) {
  refuse_other_settings(json);
  refuse_later_tokens(json);
  if (json.bool_or("add_cross_attention", false)) {
    json.at("add_cross_attention").fail("cross-attention is not supported");
  }
  if (!json.has("architectures") || json.at("architectures").size() == 0) return;
  const Json architecture = json.at("architectures").at(size_t{0});
  const std::string& name = architecture.as_string();
  for (const char* known : {"GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification"}) {
    if (name == known) return;
  }
  architecture.fail(
      "expected GPT2LMHeadModel, GPT2Model, whose output matrix is the embedding, or "
      "GPT2ForSequenceClassification");
}

}  // namespace

Gpt2Config Gpt2Config::from_json(const Json& json) {
  refuse_unsupported(json);
  Gpt2Config c;
  c.facts = read_facts(json, kNames);
  c.task = read_decoder_task(json, c.facts);
  check_heads_divide(json, c.facts, kNames);
  c.intermediate = json.int_or("n_inner", 4 * c.facts.hidden, 1, kMostWidth);
  if (c.intermediate > kMostWidth) {
    json.fail(str("n_inner, by default 4 x n_embd, is ", c.intermediate, "; expected at most ",
                  kMostWidth));
  }
  c.activation = read_activation(json, "activation_function", "gelu_new");
  c.norm_eps = json.number_or("layer_norm_epsilon", c.norm_eps, 0, 1);
  c.init_range = json.number_or("initializer_range", c.init_range, 0, kMostInitRange);
  c.embd_pdrop = read_dropout(json, "embd_pdrop", c.embd_pdrop);
  c.attn_pdrop = read_dropout(json, "attn_pdrop", c.attn_pdrop);
  c.resid_pdrop = read_dropout(json, "resid_pdrop", c.resid_pdrop);
  c.tied = json.bool_or("tie_word_embeddings", c.tied);
  c.scale_attn_weights = json.bool_or("scale_attn_weights", c.scale_attn_weights);
  c.scale_attn_by_inverse_layer_idx =
      json.bool_or("scale_attn_by_inverse_layer_idx", c.scale_attn_by_inverse_layer_idx);
  // reorder_and_upcast_attn (softmax in fp32) is ignored: softmax always computes in fp32.
  return c;
}

}  // namespace cleave::inline model
