// A transformer that classifies images: its input is not ids but image patches.
#pragma once
#include "cleave/cleave.h"

namespace image_classifier {

using namespace cleave;  // NOLINT(google-build-using-namespace)

constexpr int64_t kSide = 16, kPatch = 4, kPatches = (kSide / kPatch) * (kSide / kPatch);

// Patches [B, N, P] of images, in floating point, to states [B, N, D].
class Patches : public Layer {
 public:
  explicit Patches(int64_t width) : project_({kPatch * kPatch, width}) {
    positions_ = std::make_shared<Parameter>(std::vector<int64_t>{kPatches, width}, Init());
    add("project", project_);
    add("positions", positions_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const Tensor& positions = positions_->use();
    const DTensor y = project_(x.with(x.local().to(positions.scalar_type())), context);
    return y.with(y.local() + positions);
  }

 private:
  Linear project_;
  std::shared_ptr<Parameter> positions_;
};

class Block : public Layer {
 public:
  explicit Block(const ModelFacts& f)
      : norm_(f.hidden, 1e-5),
        attention_({.hidden = f.hidden,
                    .num_heads = f.num_heads,
                    .num_kv_heads = f.num_heads,
                    .head_dim = f.hidden / f.num_heads,
                    .causal = false}),
        mlp_norm_(f.hidden, 1e-5),
        mlp_({.hidden = f.hidden, .intermediate = 2 * f.hidden}) {
    add("norm", norm_);
    add("attention", attention_);
    add("mlp_norm", mlp_norm_);
    add("mlp", mlp_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor y = x + attention_(norm_(x, context), context);
    return y + mlp_(mlp_norm_(y, context), context);
  }

 private:
  LayerNorm norm_;
  Attention attention_;
  LayerNorm mlp_norm_;
  Mlp mlp_;
};

// The logits [B, classes] of the mean state.
class Head : public Layer {
 public:
  Head(int64_t width, int64_t num_classes) : norm_(width, 1e-5), linear_({width, num_classes}) {
    add("norm", norm_);
    add("linear", linear_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor all = x.redistribute(Replicate{});  // the tokens of all ranks
    return linear_(norm_(all.with(all.local().mean(1)), context), context);
  }

 private:
  LayerNorm norm_;
  Linear linear_;
};

class Classifier : public Model {
 public:
  explicit Classifier(const Json& config) : Model(config) {
    add("patches", patches_);
    for (int64_t i = 0; i < facts().num_layers; ++i) {
      blocks_.push_back(std::make_unique<Block>(facts()));
      add("blocks." + std::to_string(i), *blocks_.back());
    }
    add("head", head_);
  }
  // With sequence parallelism, the blocks' inputs are sharded along the patches.
  Plan plan(bool sequence_parallel) const override {
    Plan plan = Model::plan(sequence_parallel);
    if (sequence_parallel) plan.emplace_back("patches", PrepareModuleOutput{.desired = Shard{1}});
    return plan;
  }

 private:
  Patches patches_{facts().hidden};
  std::vector<std::unique_ptr<Block>> blocks_;
  Head head_{facts().hidden, 10};
};

struct Result {
  std::vector<double> losses;  // of each step
  double accuracy = 0;         // on images that training did not see
};

// Trains on noisy images of ten patterns, on the ranks of `layout`, whose plan follows from the
// model. Every layout sees the same images.
Result train(World& world, ParallelConfig layout, int num_steps);

}  // namespace image_classifier
