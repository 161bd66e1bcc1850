#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/model/model.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/linear.h"
#include "cleave/nn/mlp.h"

namespace cleave::test {

/// A model whose blocks also read the embedding's named output: x + mlp(x) + start.
class ReadsStart : public Model {
 public:
  explicit ReadsStart(const Json& config)
      : Model(config),
        embed_({.num_embeddings = facts().vocab_size, .embedding_dim = facts().hidden}),
        head_({.in_features = facts().hidden, .out_features = facts().vocab_size, .bias = false}) {
    embed_.set_output_name("start");
    add("embed", embed_);
    for (int64_t i = 0; i < facts().num_layers; ++i) {
      blocks_.push_back(std::make_unique<Block>(facts().hidden));
      add("blocks." + std::to_string(i), *blocks_.back());
    }
    add("head", head_);
  }

 private:
  class Block : public Layer {
   public:
    explicit Block(int64_t width) : mlp_({.hidden = width, .intermediate = width}) {
      add("mlp", mlp_);
    }

   protected:
    DTensor forward(const DTensor& x, const Context& context) override {
      return x + mlp_(x, context) + context.values.at("start");
    }

   private:
    Mlp mlp_;
  };

  Embedding embed_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Linear head_;
};

}  // namespace cleave::test
