#pragma once
#include <memory>
#include <vector>

#include "cleave/model/facts.h"

namespace cleave::inline model {

class Model;
struct Preset;

/// The GPT-2 family's config.json.
struct Gpt2Config {
  ModelFacts facts;
  std::string task = "lm";  ///< "lm", or that of a head for sequences
  int64_t intermediate = 0;
  Activation activation = Activation::kGeluTanh;
  double norm_eps = 1e-5;
  double init_range = 0.02;
  double embd_pdrop = 0.1, attn_pdrop = 0.1, resid_pdrop = 0.1;
  bool tied = true;
  bool scale_attn_weights = true;                ///< scores are divided by sqrt(head width)
  bool scale_attn_by_inverse_layer_idx = false;  ///< and by the layer's number, from 1

  [[nodiscard]] int64_t head_dim() const { return facts.hidden / facts.num_heads; }

  /// Throws Error(kFormat) naming key, value, range and byte, also for what is not supported: cross
  /// attention and heads other than the language model's.
  static Gpt2Config from_json(const Json& json);
};

/// A GPT-2 without memory (GPT2LMHeadModel or GPT2ForSequenceClassification) from its config.json.
/// Modules and tensors have Hugging Face's names and shapes: matrices but the embeddings are stored
/// [in, out].
std::unique_ptr<Model> make_gpt2(const Json& config);

/// gpt2-tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl.
std::vector<Preset> gpt2_presets();

}  // namespace cleave::inline model
