#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "cleave/model/flops.h"
#include "cleave/model/model.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"

namespace cleave::inline compat {
namespace {

constexpr double kNormEps = 1e-5;

struct Config {
  ModelFacts facts;
  int64_t intermediate = 0;
  double dropout = 0.1;
  double init_range = 0.02;

  [[nodiscard]] Init init() const { return Init::normal(init_range); }

  static Config from_json(const Json& json) {
    Config c;
    c.facts = read_facts(json, {});
    check_heads_divide(json, c.facts, {});
    c.facts.max_positions = kMostPositions;  // it has no position embedding
    c.facts.labels = read_labels(json);
    c.intermediate = json.int_or("intermediate_size", 4 * c.facts.hidden, 1, kMostWidth);
    c.dropout = read_dropout(json, "hidden_dropout_prob", 0.1);
    c.init_range = json.number_or("initializer_range", 0.02, 0, kMostInitRange);
    return c;
  }
};

/// x + attention(norm(x)), then x + feed_forward(norm(x)). x [B, T, D].
class Block : public Layer {
 public:
  explicit Block(const Config& c)
      : attention_norm_(c.facts.hidden, kNormEps),
        attention_({.hidden = c.facts.hidden,
                    .num_heads = c.facts.num_heads,
                    .num_kv_heads = c.facts.num_heads,
                    .head_dim = c.facts.hidden / c.facts.num_heads,
                    .causal = false,
                    .rotary = {},
                    .init = c.init(),
                    .out_init = c.init()}),
        attention_dropout_(c.dropout),
        feed_forward_norm_(c.facts.hidden, kNormEps),
        feed_forward_({.hidden = c.facts.hidden,
                       .intermediate = c.intermediate,
                       .gated = false,
                       .activation = Activation::kGelu,
                       .init = c.init(),
                       .out_init = c.init()}),
        feed_forward_dropout_(c.dropout) {
    add("attention_norm", attention_norm_);
    add("attention", attention_);
    add("attention_dropout", attention_dropout_);
    add("feed_forward_norm", feed_forward_norm_);
    add("feed_forward", feed_forward_);
    add("feed_forward_dropout", feed_forward_dropout_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor a = attention_(attention_norm_(x, context), context);
    const DTensor h = x + attention_dropout_(a, context);
    const DTensor f = feed_forward_(feed_forward_norm_(h, context), context);
    return h + feed_forward_dropout_(f, context);
  }

 private:
  LayerNorm attention_norm_;
  Attention attention_;
  Dropout attention_dropout_;
  LayerNorm feed_forward_norm_;
  Mlp feed_forward_;
  Dropout feed_forward_dropout_;
};

/// Mean over the real tokens. x [B, T, D], result [B, D].
class MeanPooling : public Layer {
 protected:
  /// The mean needs every token, so all ranks gather a sharded sequence.
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override {
    return x.placement().is_shard() ? std::optional<Placement>(Replicate{}) : std::nullopt;
  }
  DTensor forward(const DTensor& x, const Context& context) override {
    if (!context.key_mask.defined()) return mine(x.with(x.local().mean(1)));
    const Tensor real = context.key_mask.to(x.local().scalar_type()).unsqueeze(-1);
    return mine(x.with((x.local() * real).sum(1) / real.sum(1).clamp_min(1)));
  }
};

/// Two matrices with a relu between them. x [B, D], result [B, C].
class Classifier : public Layer {
 public:
  explicit Classifier(const Config& c)
      : first_({.in_features = c.facts.hidden,
                .out_features = c.facts.hidden,
                .bias = false,
                .init = c.init()}),
        second_({.in_features = c.facts.hidden,
                 .out_features = static_cast<int64_t>(c.facts.labels.size()),
                 .bias = false,
                 .init = c.init()}) {
    add("first", first_);
    add("second", second_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    return second_(map([](const Tensor& t) { return at::relu(t); }, first_(x, context)), context);
  }

 private:
  Linear first_, second_;
};

/// The simplified BERT classifier of a course's notebook (model_type "imdb_bert"): no positions,
/// linear layers without bias, pre-norm blocks, the mean over real tokens, a head of two matrices.
/// The embedding is sharded along the hidden dimension.
///
///   ids [B, T] int64   result [B, C]
class ImdbBert : public Model {
 public:
  ImdbBert(const Json& json, const Config& config)
      : Model(json, config.facts),
        config_(config),
        embedding_({.num_embeddings = config.facts.vocab_size,
                    .embedding_dim = config.facts.hidden,
                    .init = config.init()}),
        norm_(config.facts.hidden, kNormEps),
        classifier_(config) {
    add("embedding", embedding_);
    for (int64_t i = 0; i < config.facts.num_layers; ++i) {
      blocks_.push_back(std::make_unique<Block>(config));
      add(str("blocks.", i), *blocks_.back());
    }
    add("norm", norm_);
    add("pooling", pooling_);
    add("classifier", classifier_);
  }

  [[nodiscard]] std::string task() const override { return "classify"; }

  [[nodiscard]] Plan plan(bool sequence_parallel) const override {
    const Placement between = sequence_parallel ? Placement(Shard{1}) : Placement(Replicate{});
    return {
        {"embedding", Colwise{.output = between}},
        {"blocks.*.attention.{q,k,v}_proj", Colwise{}},
        {"blocks.*.attention.o_proj", Rowwise{.output = between}},
        {"blocks.*.feed_forward.up_proj", Colwise{}},
        {"blocks.*.feed_forward.down_proj", Rowwise{.output = between}},
        {"classifier.first", Colwise{}},
        {"classifier.second", Rowwise{}},
    };
  }

  [[nodiscard]] double train_flops_per_token(int64_t seq_len) override {
    std::vector<Layer*> of_all_tokens{&norm_};
    for (const auto& block : blocks_) of_all_tokens.push_back(block.get());
    return train_flops_of(of_all_tokens, seq_len);
  }

 private:
  Config config_;
  Embedding embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  LayerNorm norm_;
  MeanPooling pooling_;
  Classifier classifier_;
};

std::unique_ptr<Model> make_imdb_bert(const Json& config) {
  return std::make_unique<ImdbBert>(config, Config::from_json(config));
}

std::vector<Preset> imdb_bert_presets() {
  const nlohmann::ordered_json config = {
      {"vocab_size", 30522},          {"hidden_size", 128},        {"num_hidden_layers", 2},
      {"num_attention_heads", 4},     {"intermediate_size", 512},  {"hidden_act", "gelu"},
      {"hidden_dropout_prob", 0.1},   {"initializer_range", 0.02}, {"model_type", "imdb_bert"},
      {"architectures", {"ImdbBert"}}};
  return {{.name = "imdb-bert", .config_json = config.dump()}};
}

// The model families of Cleave do not depend on this one, so it registers itself.
[[maybe_unused]] const bool kIsRegistered = [] {
  register_model("imdb_bert", &make_imdb_bert, &imdb_bert_presets);
  return true;
}();

}  // namespace
}  // namespace cleave::inline compat
