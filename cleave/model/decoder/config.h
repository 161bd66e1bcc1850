#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "cleave/model/facts.h"
#include "cleave/nn/layer_options.h"

namespace cleave::inline model {

/// What differs between the blocks of one decoder.
struct DecoderLayer {
  int64_t window = 0;  ///< keys that a query may attend to, its own included; 0: all
  bool has_rotary = true;
  std::optional<RotaryOptions> rotary{};  ///< instead of the model's
  bool has_experts = false;               ///< a mixture of experts instead of an MLP
};

/// The mixture of experts of a decoder's blocks.
struct ExpertsConfig {
  int64_t num_experts = 0;
  int64_t top_k = 0;         ///< experts of a token
  int64_t intermediate = 0;  ///< width of an expert
  bool normalizes = true;    ///< the weights of a token's experts sum to 1
  /// Mixtral's names: block_sparse_moe with w1, w3 and w2, instead of mlp with gate_proj, up_proj
  /// and down_proj.
  bool has_mixtral_names = false;
};

/// Which RMS norms a block has: before attention and MLP, after them, or both.
enum class BlockNorms : uint8_t { kInputs, kOutputs, kBoth };

/// A decoder of Llama's shape: embedding, blocks of causal attention and a gated MLP with RMS
/// norms, a norm and the output matrix or a classifier. The families fill it in from their
/// config.json.
struct DecoderConfig {
  ModelFacts facts;
  std::string task = "lm";  ///< "lm", or that of a head for sequences
  int64_t intermediate = 0;
  int64_t head_dim = 0;
  double norm_eps = 1e-6;
  double norm_offset = 0;  ///< added to the weights of all norms
  double init_range = 0.02;
  double attention_dropout = 0;
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  bool tied = false;
  bool is_fused = false;       ///< q, k and v are one matrix, gate and up another
  double embedding_scale = 1;  ///< factor of the embedding's rows
  double score_divisor = 0;    ///< of the attention scores q k^T; 0: sqrt(head_dim)
  double score_cap = 0;        ///< soft cap of the attention scores; 0: none
  double logit_cap = 0;        ///< soft cap of the logits; 0: none
  BlockNorms norms = BlockNorms::kInputs;
  QkNorm qk_norm = QkNorm::kNone;
  Activation activation = Activation::kSilu;
  RotaryOptions rotary;
  std::vector<DecoderLayer> layers;  ///< one entry per block
  ExpertsConfig experts{};           ///< of the blocks that have them
};

/// What a family's config.json means where it lacks a key, as in transformers, and which keys of
/// other families it has.
struct DecoderDefaults {
  int64_t positions = 2048;
  double norm_eps = 1e-6;
  double theta = 10000;
  bool tied = false;
  std::optional<int64_t> kv_heads{}, head_dim{};  ///< empty: the heads; width / heads
  std::optional<int64_t> eos{}, pad{};
  /// Phi-3's rotary settings: partial_rotary_factor, original_max_position_embeddings with the
  /// default 4096 outside rope_scaling, and of the types only longrope, also named su and yarn.
  bool has_phi3_rotary = false;
  bool has_layer_rotary = false;             ///< read_layer_rotary() reads the rotary settings
  std::vector<std::string_view> own_keys{};  ///< of refuse_other_settings()
};

/// Reads what all decoders have in common, with every layer as DecoderLayer{}. Throws
/// Error(kFormat) naming key, value, range and byte; also for rotary scaling that Cleave lacks.
DecoderConfig read_decoder(const Json& json, const DecoderDefaults& defaults);

/// Reads the experts' number, under any of its names, and how many a token has. `width` is an
/// expert's. Throws Error(kFormat), also for experts that are together wider than kMostWidth.
ExpertsConfig read_experts(const Json& json, int64_t width, const ExpertsConfig& defaults);

/// Reads rope_scaling or rope_parameters for `c`, whose head_dim and positions are set.
RotaryOptions read_rotary(const Json& json, const DecoderConfig& c,
                          const DecoderDefaults& defaults);

/// A base of the rotary angles. Throws Error(kFormat).
double read_theta(const Json& json, std::string_view key, double absent);

/// The bases of the rotary angles of full and of sliding layers, where their settings have none.
struct LayerThetas {
  double full = 0, sliding = 0;
};

/// Reads the rotary settings of a model whose sliding layers have their own, for the layers of `c`
/// with their windows: rope_scaling for full layers, or rope_parameters with an object for each
/// type of layer. Throws Error(kFormat).
void read_layer_rotary(const Json& json, const LayerThetas& thetas, DecoderConfig& c);

/// Throws Error(kFormat) if config.json turns sliding windows on: the family has none.
void refuse_window(const Json& json);

/// The window sliding_window; 0 for null. `absent` is the value if the key is missing.
int64_t read_window(const Json& json, int64_t absent);

/// Sets the layers' windows from layer_types ("full_attention", "sliding_attention"). Without that
/// key, layer i is sliding if is_sliding[i]. Throws Error(kFormat) for another type or number of
/// types, or a sliding layer with window 0.
void read_layer_types(const Json& json, int64_t window, const std::vector<bool>& is_sliding,
                      DecoderConfig& c);

/// Sets the windows of a family whose layers are sliding, of 4096 keys by default, but for layers
/// full_every, 2 full_every, ...; layer_types can change that. Throws Error(kFormat).
void read_periodic_windows(const Json& json, int64_t full_every, DecoderConfig& c);

/// For families in which all layers have the same window: sets it, and refuses layer_types that
/// differ.
void set_window(const Json& json, int64_t window, DecoderConfig& c);

}  // namespace cleave::inline model
