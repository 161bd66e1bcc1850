#pragma once
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/compat/notebook.h"
#include "cleave/compat/nxd_pipeline.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/recompute.h"
#include "cleave/parallel/zero1.h"
#include "tests/support/ranks.h"

/// Small models that every facade can train on every layout, and helpers to train them.
namespace cleave::pairings {

inline constexpr int64_t kRows = 8, kTokens = 6, kVocab = 29, kSteps = 3;
inline constexpr uint64_t kSeed = 4;
inline constexpr double kLr = 1e-2;

// Heads, widths and vocabulary are uneven over 2 ranks; the embedding is tied to the head.
inline const char* const kConfig =
    R"json({"model_type": "llama", "vocab_size": 29, "hidden_size": 12,
  "intermediate_size": 10, "num_hidden_layers": 3, "num_attention_heads": 3,
  "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 16,
  "tie_word_embeddings": true, "initializer_range": 0.3})json";

enum class Facade { kNxd, kOslo, kNotebook, kCustomLoop };
enum class Sharding { kNone, kZero1, kFsdp };

struct Layout {
  const char* name;
  int pp = 1, dp = 1, tp = 1;
  bool sequence_parallel = false;
  Sharding sharding = Sharding::kNone;
  int parts = 1;  // micro-batches for gradient accumulation
  bool recompute = false;
};

/// Part of a classifier of the notebook's layers, which need whole sequences. With sequence
/// parallelism each rank has its tokens between them.
class NotebookPart : public nxd::PlainLayer {
 protected:
  explicit NotebookPart(bool sequence_parallel) : sequence_parallel_(sequence_parallel) {}
  [[nodiscard]] Tensor whole(const Tensor& x) const {
    return sequence_parallel_
               ? nxd::gather_from_sequence_parallel_region(x, 1, /*to_model_parallel=*/false)
               : x;
  }
  [[nodiscard]] Tensor shard(const Tensor& x) const {
    return sequence_parallel_ ? nxd::scatter_to_sequence_parallel_region(x) : x;
  }

 private:
  bool sequence_parallel_;
};

class Embed : public NotebookPart {
 public:
  explicit Embed(bool sequence_parallel) : NotebookPart(sequence_parallel), table_(kVocab, 12) {
    add("table", table_);
  }

 protected:
  Tensor compute(const Tensor& ids, const Context& /*context*/) override {
    return shard(table_(ids));
  }

 private:
  notebook::Embedding table_;
};

class Block : public NotebookPart {
 public:
  explicit Block(bool sequence_parallel)
      : NotebookPart(sequence_parallel),
        attention_(12, 3),
        pair_({.in_features = 12, .hidden_features = 9, .out_features = 12}) {
    add("attention", attention_);
    add("pair", pair_);
  }

 protected:
  Tensor compute(const Tensor& x, const Context& context) override {
    const Tensor y = x + shard(attention_(whole(x), context));
    return y + shard(pair_(whole(y)));
  }

 private:
  notebook::MultiHeadSelfAttention attention_;
  notebook::ColRowLinearPair pair_;
};

class Head : public NotebookPart {
 public:
  explicit Head(bool sequence_parallel)
      : NotebookPart(sequence_parallel),
        linears_({.in_features = 12, .hidden_features = 7, .out_features = 2, .bias = true}) {
    add("linears", linears_);
  }

 protected:
  Tensor compute(const Tensor& x, const Context& /*context*/) override {
    return linears_(whole(x).mean(1));
  }

 private:
  notebook::FeedForwardBlock linears_;
};

struct Classifier : LayerGroup {
  explicit Classifier(bool sequence_parallel)
      : embed(sequence_parallel),
        first(sequence_parallel),
        second(sequence_parallel),
        head(sequence_parallel) {
    add("embed", embed);
    add("first", first);
    add("second", second);
    add("head", head);
  }
  Embed embed;
  Block first, second;
  Head head;
};

/// A model for the training loops below.
struct Net {
  std::unique_ptr<Layer> root;
  std::vector<Layer*> sequence;
  bool is_classifier = false;

  [[nodiscard]] Tensor loss(const DTensor& output, const Tensor& ids) const {
    if (is_classifier) return at::cross_entropy_loss(output.local(), ids.select(1, 0).remainder(2));
    return cross_entropy(output, next_token_labels(ids)).local();
  }
  [[nodiscard]] Tensor loss_of(const Tensor& ids, const Axis& tp) const {
    DTensor x(ids, tp, Replicate{});
    for (Layer* layer : sequence) x = (*layer)(x, Context());
    return loss(x, ids);
  }
};

inline std::unique_ptr<Model> llama() {
  return make_model(Json::parse(kConfig, "config.json"));
}

/// The notebook's layers need the groups of initialize_model_parallel.
inline Net net_of(Facade facade, const Layout& layout, const Axis& tp) {
  Net net;
  if (facade == Facade::kNotebook) {
    auto model = std::make_unique<Classifier>(layout.sequence_parallel);
    net = {.root = nullptr,
           .sequence = {&model->embed, &model->first, &model->second, &model->head},
           .is_classifier = true};
    net.root = std::move(model);
  } else {
    auto model = llama();
    if (tp.size() > 1) parallelize_module(*model, tp, model->plan(layout.sequence_parallel));
    net.sequence = model->sequence();
    net.root = std::move(model);
  }
  if (layout.recompute) {
    for (const size_t i : blocks_of(net.sequence)) recompute(*net.sequence[i]);
  }
  return net;
}

inline void shard(const Net& net, const Layout& layout, const Axis& dp) {
  if (layout.sharding != Sharding::kFsdp) return;
  for (Layer* layer : net.sequence) fully_shard(*layer, dp);
}

inline Tensor ids_of(int64_t step) {
  return test::ids({kRows, kTokens}, kVocab, static_cast<uint64_t>(100 + step));
}

inline Tensor part_of(const Tensor& rows, int64_t part, int64_t count) {
  const int64_t size = rows.size(0) / count;
  return rows.narrow(0, part * size, size);
}

inline OptimizerOptions optimizer_options() {
  return {.eps = 1e-3, .weight_decay = 0.1};
}

inline std::unique_ptr<Optimizer> optimizer_of(const Parameters& parameters, const Layout& layout,
                                               const Axis& dp,
                                               const PipelineModel* pipeline = nullptr) {
  if (layout.sharding != Sharding::kZero1) {
    return std::make_unique<Optimizer>(parameters, optimizer_options());
  }
  auto zero1 = std::make_unique<Zero1Optimizer>(parameters, dp, optimizer_options(),
                                                Zero1Options{.pipeline = pipeline});
  zero1->gather_weights();
  return zero1;
}

inline void reduce(Optimizer& optimizer) {
  if (auto* zero1 = dynamic_cast<Zero1Optimizer*>(&optimizer)) zero1->reduce_gradients();
}

/// Backward of this rank's sequences in `parts`, each loss weighted by `share`; returns the mean
/// loss.
inline double backward(const Net& net, const Tensor& rows, int parts, double share,
                       const Axis& tp) {
  double sum = 0;
  for (int i = 0; i < parts; ++i) {
    const Tensor loss = net.loss_of(part_of(rows, i, parts), tp);
    (loss * share).backward();
    sum += loss.item<double>();
  }
  return sum / parts;
}

}  // namespace cleave::pairings
