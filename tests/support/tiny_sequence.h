#pragma once
#include <memory>
#include <vector>

#include "cleave/nn/cross_entropy.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"
#include "cleave/parallel/plan.h"
#include "cleave/pipeline/pipeline_model.h"
#include "tests/support/ranks.h"

namespace cleave::test {

struct TinyOptions {
  int64_t num_blocks = 8;
  int64_t width = 6;
  int64_t vocab = 11;
  bool tied = false;   ///< the head shares the embedding's weight
  double dropout = 0;  ///< in every block
};

/// x + dropout(mlp(norm(x))).
class TinyBlock : public Layer {
 public:
  explicit TinyBlock(const TinyOptions& o)
      : norm_(o.width, 1e-5),
        mlp_({.hidden = o.width, .intermediate = 2 * o.width + 1, .bias = true, .init = init()}),
        dropout_(o.dropout) {
    add("norm", norm_);
    add("mlp", mlp_);
    add("dropout", dropout_);
  }
  static Init init() { return Init::normal(0.4); }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    return x + dropout_(mlp_(norm_(x, context), context), context);
  }

 private:
  RmsNorm norm_;
  Mlp mlp_;
  Dropout dropout_;
};

/// A minimal model: embedding, blocks, norm, head.
class TinySequence : public LayerGroup {
 public:
  explicit TinySequence(const TinyOptions& o)
      : embed_({.num_embeddings = o.vocab, .embedding_dim = o.width, .init = TinyBlock::init()}),
        norm_(o.width, 1e-5),
        head_({.in_features = o.width,
               .out_features = o.vocab,
               .bias = !o.tied,
               .init = TinyBlock::init()}) {
    if (o.tied) head_.tie_weight(embed_.weight());
    add("embed", embed_);
    for (int64_t i = 0; i < o.num_blocks; ++i) {
      blocks_.push_back(std::make_unique<TinyBlock>(o));
      add(str("blocks.", i), *blocks_.back());
    }
    add("norm", norm_);
    add("head", head_);
    name_tree();
  }

  [[nodiscard]] std::vector<Layer*> sequence() {
    std::vector<Layer*> out{&embed_};
    for (const auto& block : blocks_) out.push_back(block.get());
    out.push_back(&norm_);
    out.push_back(&head_);
    return out;
  }

  /// With `between` Shard(1), activations between tensor-parallel regions are sharded along tokens.
  static Plan plan(const Placement& between) {
    return {{"embed", Rowwise{.output = between}},
            {"blocks.*.mlp.{gate,up}_proj", Colwise{}},
            {"blocks.*.mlp.down_proj", Rowwise{.output = between}},
            {"head", Colwise{.output = Shard{-1}}}};
  }

 private:
  Embedding embed_;
  std::vector<std::unique_ptr<TinyBlock>> blocks_;
  RmsNorm norm_;
  Linear head_;
};

/// The sequences of a batch, and its division into micro-batches.
struct TinyBatch {
  at::Tensor ids, labels;     // [B, T]
  std::vector<int64_t> rows;  // sequences of each micro-batch

  TinyBatch(const std::vector<int64_t>& rows_of_each, int64_t vocab, int64_t num_tokens = 3)
      : rows(rows_of_each) {
    int64_t num_rows = 0;
    for (const int64_t r : rows) num_rows += r;
    ids = test::ids({num_rows, num_tokens}, vocab, 5);
    labels = test::ids({num_rows, num_tokens}, vocab, 6);
  }

  [[nodiscard]] std::vector<MicroBatch> micro_batches(const Axis& tp) const {
    std::vector<MicroBatch> out;
    int64_t begin = 0;
    for (const int64_t r : rows) {
      Context context;
      context.training = true;
      context.seed = 3;
      context.step = 4;
      context.first_sample = begin;
      out.push_back(
          {.input = DTensor(ids.narrow(0, begin, r), tp, Replicate{}), .context = context});
      begin += r;
    }
    return out;
  }

  /// Cross entropy of a micro-batch's logits, divided by the labels of the whole batch.
  [[nodiscard]] PipelineLoss loss() const {
    return [labels = labels, rows = rows](const DTensor& logits, size_t micro_batch) {
      int64_t begin = 0;
      for (size_t m = 0; m < micro_batch; ++m) begin += rows[m];
      return cross_entropy(logits, labels.narrow(0, begin, rows[micro_batch]),
                           {.valid_tokens = labels.numel()})
          .local();
    };
  }
};

}  // namespace cleave::test
