#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/model/model.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/kv_cache.h"
#include "cleave/nn/linear.h"

namespace cleave::test {

/// What a user's model does with the keys and the positions of earlier tokens.
struct OwnOptions {
  bool uses_cache = true;  ///< false: attention by libtorch's own function
  enum class Positions : uint8_t {
    kNone,
    kFromZero,  ///< those of the tokens of the call, whatever came before
    kByCache,   ///< those after the tokens of the cache; Context::positions are ignored
    kByContext,
  } positions = Positions::kNone;
  bool in_one_layer = false;  ///< the model has a single layer, with all others in it
  int64_t max_positions = 32;
};

/// Causal attention of two heads by at::scaled_dot_product_attention, whole on each rank.
class TorchAttention : public Layer {
 public:
  explicit TorchAttention(int64_t width)
      : qkv_({.in_features = width, .out_features = 3 * width, .init = Init::normal(0.5)}),
        out_({.in_features = width, .out_features = width, .init = Init::normal(0.5)}) {
    add("qkv", qkv_);
    add("out", out_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const std::vector<at::Tensor> parts = qkv_(x, context).local().chunk(3, 2);
    const auto heads = [](const at::Tensor& t) {
      return t.view({t.size(0), t.size(1), 2, -1}).transpose(1, 2);
    };
    const at::Tensor y = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]),
                                                          heads(parts[2]), {}, 0, true);
    return out_(x.with(y.transpose(1, 2).reshape(x.local().sizes())), context);
  }

 private:
  Linear qkv_, out_;
};

/// x + a learned vector for each position.
class LearnedPositions : public Layer {
 public:
  LearnedPositions(int64_t width, const OwnOptions& options)
      : options_(options),
        table_(std::make_shared<Parameter>(std::vector<int64_t>{options.max_positions, width},
                                           Init::normal(1))) {
    add("table", table_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    using enum OwnOptions::Positions;
    const bool counts = options_.positions != kFromZero && context.cache != nullptr;
    const int64_t past = counts ? context.cache->length() : 0;
    if (options_.positions == kByContext && context.positions.defined()) {
      return x.with(x.local() + at::embedding(table_->use(), context.positions));
    }
    return x.with(x.local() + table_->use().narrow(0, past, x.local().size(1)));
  }

 private:
  OwnOptions options_;
  std::shared_ptr<Parameter> table_;
};

/// Embedding, positions, x + attention(x), head.
class OwnModel : public Model {
 public:
  static constexpr int64_t kVocab = 13, kWidth = 8;

  explicit OwnModel(const OwnOptions& o)
      : Model(Json::parse("{}", "own"), {.vocab_size = kVocab,
                                         .max_positions = o.max_positions,
                                         .eos_ids = {},
                                         .bos_id = {},
                                         .pad_id = {},
                                         .labels = {}}),
        all_(o) {
    if (o.in_one_layer) {
      add("all", all_);
    } else {
      for (Layer* layer : all_.layers()) add("layer" + std::to_string(num_layers_++), *layer);
    }
  }
  Plan plan(bool /*sequence_parallel*/) const override { return {}; }

 private:
  class Residual : public Layer {
   public:
    explicit Residual(const OwnOptions& o) : own_(kWidth), cached_(cached_options()) {
      inner_ = o.uses_cache ? static_cast<Layer*>(&cached_) : &own_;
      add("inner", *inner_);
    }

   protected:
    DTensor forward(const DTensor& x, const Context& context) override {
      return x + (*inner_)(x, context);
    }

   private:
    static AttentionOptions cached_options() {
      return {.hidden = kWidth,
              .num_heads = 2,
              .num_kv_heads = 2,
              .head_dim = kWidth / 2,
              .rotary = {},
              .init = Init::normal(0.5),
              .out_init = Init::normal(0.5)};
    }
    TorchAttention own_;
    Attention cached_;
    Layer* inner_;
  };

  class All : public Layer {
   public:
    explicit All(const OwnOptions& o)
        : embed_({.num_embeddings = kVocab, .embedding_dim = kWidth, .init = Init::normal(1)}),
          positions_(kWidth, o),
          block_(o),
          head_({.in_features = kWidth, .out_features = kVocab, .init = Init::normal(0.5)}) {
      layers_ = {&embed_, &positions_, &block_, &head_};
      if (o.positions == OwnOptions::Positions::kNone) layers_.erase(layers_.begin() + 1);
      if (!o.in_one_layer) return;
      for (size_t i = 0; i < layers_.size(); ++i) add(std::to_string(i), *layers_[i]);
    }
    [[nodiscard]] const std::vector<Layer*>& layers() const { return layers_; }

   protected:
    DTensor forward(const DTensor& ids, const Context& context) override {
      DTensor x = ids;
      for (Layer* layer : layers_) x = (*layer)(x, context);
      return x;
    }

   private:
    Embedding embed_;
    LearnedPositions positions_;
    Residual block_;
    Linear head_;
    std::vector<Layer*> layers_;
  };

  All all_;
  int num_layers_ = 0;
};

}  // namespace cleave::test
