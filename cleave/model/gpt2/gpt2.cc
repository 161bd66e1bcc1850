#include "cleave/model/gpt2/gpt2.h"

#include <array>
#include <cmath>

#include <ATen/ATen.h>

#include "cleave/model/decoder/fused.h"
#include "cleave/model/decoder/head.h"
#include "cleave/model/flops.h"
#include "cleave/model/model.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"

namespace cleave::inline model {
namespace {

// Shape letters: B sequences, T tokens, D hidden, H heads on this rank, K head width, V vocabulary.

/// Output projections start smaller, since every layer adds two of them to the residual stream.
/// Source: Radford et al., Language Models are Unsupervised Multitask Learners, section 2.3.
Init out_init(const Gpt2Config& c) {
  return Init::normal(c.init_range / std::sqrt(2.0 * static_cast<double>(c.facts.num_layers)));
}

/// Token and position embeddings. ids [B, T] to [B, T, D].
class Gpt2Embeddings : public Layer {
 public:
  explicit Gpt2Embeddings(const Gpt2Config& c)
      : max_positions_(c.facts.max_positions),
        wte_({.num_embeddings = c.facts.vocab_size,
              .embedding_dim = c.facts.hidden,
              .init = Init::normal(c.init_range)}),
        wpe_({.num_embeddings = c.facts.max_positions,
              .embedding_dim = c.facts.hidden,
              .init = Init::normal(c.init_range)}),
        drop_(c.embd_pdrop) {
    add("wte", wte_);
    add("wpe", wpe_);
    add("drop", drop_);
  }

  [[nodiscard]] const std::shared_ptr<Parameter>& token_weight() const { return wte_.weight(); }

 protected:
  DTensor forward(const DTensor& ids, const Context& context) override {
    const DTensor tokens = wte_(ids, context);
    DTensor positions(positions_of(ids, context), ids.axis(), Replicate{});
    // If tokens are sharded along T, each rank looks up only its own positions.
    if (tokens.placement().is_shard(1)) positions = positions.redistribute(tokens.placement());
    return drop_(tokens + wpe_(positions, context), context);
  }

 private:
  /// [B, T] or [1, T]
  [[nodiscard]] Tensor positions_of(const DTensor& ids, const Context& context) const {
    if (context.positions.defined()) {
      const Tensor positions = context.positions.to(ids.local().device(), /*non_blocking=*/true);
      return positions.dim() == 1 ? positions.unsqueeze(0) : positions;
    }
    const int64_t past = context.cache != nullptr ? context.cache->length() : 0;
    const int64_t end = past + ids.size(1);
    CLEAVE_CHECK(end <= max_positions_, Code::kShape, "a sequence of ", end,
                 " tokens; the model has n_positions=", max_positions_);
    return at::arange(past, end, ids.local().options()).unsqueeze(0);
  }

  int64_t max_positions_;
  Embedding wte_, wpe_;
  Dropout drop_;
};

/// Self-attention whose q, k and v are columns of one matrix. x [B, T, D] to [B, T, D].
class Gpt2Attention : public Layer, public HasHeads {
 public:
  Gpt2Attention(const Gpt2Config& c, int64_t layer)
      : head_dim_(c.head_dim()),
        c_attn_({.in_features = c.facts.hidden,
                 .out_features = 3 * c.facts.hidden,
                 .transposed = true,
                 .init = Init::normal(c.init_range)}),
        c_proj_({.in_features = c.facts.hidden,
                 .out_features = c.facts.hidden,
                 .transposed = true,
                 .init = out_init(c)}),
        heads_({.hidden = c.facts.hidden,
                .num_heads = c.facts.num_heads,
                .num_kv_heads = c.facts.num_heads,
                .head_dim = c.head_dim(),
                .dropout = c.attn_pdrop,
                .rotary = {}}),
        resid_dropout_(c.resid_pdrop) {
    add("c_attn", c_attn_);
    add("c_proj", c_proj_);
    add("resid_dropout", resid_dropout_);
    // HeadAttention divides scores by sqrt(K); the config's other scales are applied to the
    // queries.
    if (!c.scale_attn_weights) query_scale_ *= std::sqrt(static_cast<double>(head_dim_));
    if (c.scale_attn_by_inverse_layer_idx) query_scale_ /= static_cast<double>(layer + 1);
  }

  void prepare_split(const Axis& axis) override {
    const HeadShard shard = heads_.shard(axis);
    c_attn_.set_column_shards(fused_columns(shard));
    c_proj_.set_row_shards(shard.query);
    part_ = shard.query;
  }

  void check_split(const Axis& axis) override {
    check_split_together(*this, c_attn_, c_proj_, "c_attn and c_proj");
    if (c_attn_.is_column_split()) heads_.set_split(axis);
  }

  [[nodiscard]] HeadAttention& heads() override { return heads_; }
  [[nodiscard]] double forward_flops_per_token(int64_t seq_len) const override {
    return heads_.forward_flops_per_token(seq_len);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor qkv = c_attn_(x, context);
    check_own_columns(*this, c_attn_, qkv);
    // Query, key and value columns of this rank, each [B, T, H*K]. One split makes one join of
    // their gradients.
    const int64_t width = qkv.local().size(2) / 3;
    const std::vector<Tensor> thirds = qkv.local().split_with_sizes({width, width, width}, 2);
    const auto placed = [&](const Tensor& columns) {
      return qkv.placement().is_shard(2) ? qkv.with(columns, Shard{2, part_}) : qkv.with(columns);
    };
    const Tensor q = query_scale_ == 1 ? thirds[0] : thirds[0] * query_scale_;
    const DTensor y = heads_(placed(q), placed(thirds[1]), placed(thirds[2]), path(), context);
    return resid_dropout_(c_proj_(mine(y), context), context);
  }

 private:
  int64_t head_dim_;
  Linear c_attn_, c_proj_;
  HeadAttention heads_;
  Dropout resid_dropout_;
  double query_scale_ = 1;
  SplitPtr part_;
};

/// c_proj(act(c_fc(x))). x [B, T, D] to [B, T, D].
class Gpt2Mlp : public Layer {
 public:
  explicit Gpt2Mlp(const Gpt2Config& c)
      : activation_(c.activation),
        c_fc_({.in_features = c.facts.hidden,
               .out_features = c.intermediate,
               .transposed = true,
               .init = Init::normal(c.init_range)}),
        c_proj_({.in_features = c.intermediate,
                 .out_features = c.facts.hidden,
                 .transposed = true,
                 .init = out_init(c)}),
        dropout_(c.resid_pdrop) {
    add("c_fc", c_fc_);
    add("c_proj", c_proj_);
    add("dropout", dropout_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const auto act = [this](const Tensor& t) { return activate(activation_, t); };
    return dropout_(c_proj_(map(act, c_fc_(x, context)), context), context);
  }

 private:
  Activation activation_;
  Linear c_fc_, c_proj_;
  Dropout dropout_;
};

/// x + attn(ln_1(x)), then x + mlp(ln_2(x)). x [B, T, D].
class Gpt2Block : public Layer {
 public:
  Gpt2Block(const Gpt2Config& c, int64_t layer)
      : ln_1_(c.facts.hidden, c.norm_eps),
        attn_(c, layer),
        ln_2_(c.facts.hidden, c.norm_eps),
        mlp_(c) {
    add("ln_1", ln_1_);
    add("attn", attn_);
    add("ln_2", ln_2_);
    add("mlp", mlp_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor h = x + attn_(ln_1_(x, context), context);
    return h + mlp_(ln_2_(h, context), context);
  }

 private:
  LayerNorm ln_1_;
  Gpt2Attention attn_;
  LayerNorm ln_2_;
  Gpt2Mlp mlp_;
};

/// The modules that Hugging Face names "transformer.*": ids to final hidden states.
class Gpt2Trunk : public LayerGroup {
 public:
  explicit Gpt2Trunk(const Gpt2Config& c) : embeddings_(c), ln_f_(c.facts.hidden, c.norm_eps) {
    add("", embeddings_);  // no prefix of its own in names
    for (int64_t i = 0; i < c.facts.num_layers; ++i) {
      blocks_.push_back(std::make_unique<Gpt2Block>(c, i));
      add(str("h.", i), *blocks_.back());
    }
    add("ln_f", ln_f_);
  }

  [[nodiscard]] const std::shared_ptr<Parameter>& token_weight() const {
    return embeddings_.token_weight();
  }

 private:
  Gpt2Embeddings embeddings_;
  std::vector<std::unique_ptr<Gpt2Block>> blocks_;
  LayerNorm ln_f_;
};

class Gpt2 : public Model {
 public:
  Gpt2(const Json& json, const Gpt2Config& config)
      : Model(json, config.facts),
        is_tied_(config.tied),
        task_(config.task),
        transformer_(config),
        head_(make_decoder_head(
            config.facts, config.task,
            {.init_range = config.init_range,
             .tied_weight = config.tied ? transformer_.token_weight() : nullptr})) {
    add("transformer", transformer_, "");
    add(head_name(task_), *head_);
  }

  [[nodiscard]] std::string task() const override { return task_; }
  [[nodiscard]] double train_flops_per_token(int64_t seq_len) override {
    const std::array<Layer*, 1> of_all_tokens{&transformer_};
    return is_lm() ? Model::train_flops_per_token(seq_len) : train_flops_of(of_all_tokens, seq_len);
  }

  [[nodiscard]] bool can_record_decoding() const override { return true; }
  [[nodiscard]] Plan plan(bool sequence_parallel) const override {
    const Placement between = sequence_parallel ? Placement(Shard{1}) : Placement(Replicate{});
    Plan plan = {
        {"transformer.wte", Rowwise{.output = between}},
        {"transformer.h.*.attn.c_attn", Colwise{}},
        {"transformer.h.*.mlp.c_fc", Colwise{}},
        {"transformer.h.*.{attn,mlp}.c_proj", Rowwise{.output = between}},
    };
    // The loss reads sharded logits.
    if (is_lm()) plan.emplace_back("lm_head", Colwise{.output = Shard{-1}});
    return plan;
  }

  /// GPT-2's published files are those of GPT2Model, without the prefix "transformer.".
  [[nodiscard]] std::vector<std::string> other_names(const std::string& parameter) const override {
    constexpr std::string_view kTrunk = "transformer.";
    if (!parameter.starts_with(kTrunk)) return {};
    return {parameter.substr(kTrunk.size())};
  }
  /// Causal masks in older files, a second copy of the tied matrix, and the output matrix of the
  /// language model that becomes a classifier.
  [[nodiscard]] bool ignores(const std::string& tensor) const override {
    return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias") ||
           (tensor == "lm_head.weight" && (is_tied_ || !is_lm()));
  }

 private:
  [[nodiscard]] bool is_lm() const { return task_ == "lm"; }

  bool is_tied_;
  std::string task_;
  Gpt2Trunk transformer_;
  std::unique_ptr<Layer> head_;
};

}  // namespace

std::unique_ptr<Model> make_gpt2(const Json& config) {
  return std::make_unique<Gpt2>(config, Gpt2Config::from_json(config));
}

}  // namespace cleave::inline model
