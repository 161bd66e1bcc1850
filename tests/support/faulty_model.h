#pragma once
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/gemm.h"
#include "cleave/layout/shards.h"
#include "cleave/model/model.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/norm.h"
#include "cleave/torch_internals/node.h"

namespace cleave::test {

/// Typical mistakes in tensor-parallel layers. None has an effect on one rank.
enum class Fault {
  kNone,
  kBiasOnEveryRank,  ///< a row-parallel layer adds its bias before the sum
  kQkvSlice,         ///< a fused QKV matrix is sharded into equal row ranges, not by heads
  kNoAllReduce,      ///< a column-parallel layer does not sum its input's gradient
  kGatherBackward,   ///< a gather's backward sums gradients that are already complete
  kKvHeadMap,        ///< every rank uses the first rank's map from query to key heads
  kLocalDropout,     ///< dropout counts elements from 0 on every rank
  kDetachedWeight,   ///< a column-parallel layer detaches its weight: backward does not reach it
};

/// Row-parallel x W^T + b that adds the bias on every rank (kBiasOnEveryRank).
class BiasInSum : public Layer {
 public:
  BiasInSum(int64_t in, int64_t out)
      : weight_(std::make_shared<Parameter>(std::vector<int64_t>{out, in}, Init::normal(0.3))),
        bias_(std::make_shared<Parameter>(std::vector<int64_t>{out}, Init::constant(0))) {
    add("weight", weight_);
    add("bias", bias_);
  }
  void split_rows(const Axis& axis) override {
    weight_->shard(axis, 1, Split::balanced(weight_->shape()[1], axis.size()));
    set_output_layout(Replicate{});
  }

 protected:
  std::optional<Placement> accepts(const DTensor& x) const override {
    if (!weight_->is_split()) return std::nullopt;
    return Shard{static_cast<int>(x.dim()) - 1, weight_->placement().split()};
  }
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    const at::Tensor y = affine(x.local(), weight_->use(), bias_->use());
    const DTensor sum = weight_->is_split() ? x.with(y, Partial{}) : x.with(y);
    bias_->used_in(sum);
    return sum;
  }

 private:
  std::shared_ptr<Parameter> weight_, bias_;
};

/// Column-parallel x W^T that declares no input layout, so its input's gradient is not summed
/// (kNoAllReduce).
class ColumnsWithoutAllReduce : public Layer {
 public:
  ColumnsWithoutAllReduce(int64_t in, int64_t out)
      : weight_(std::make_shared<Parameter>(std::vector<int64_t>{out, in}, Init::normal(0.3))) {
    add("weight", weight_);
  }
  void split_columns(const Axis& axis) override {
    weight_->shard(axis, 0, Split::balanced(weight_->shape()[0], axis.size()));
  }

 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    const at::Tensor y = affine(x.local(), weight_->use(), std::nullopt);
    if (!weight_->is_split()) return x.with(y);
    return x.with(y, Shard{static_cast<int>(x.dim()) - 1, weight_->placement().split()});
  }

 private:
  std::shared_ptr<Parameter> weight_;
};

/// Column-parallel x W^T that detaches its shard of the weight (kDetachedWeight).
class DetachedColumns : public Layer {
 public:
  DetachedColumns(int64_t in, int64_t out)
      : weight_(std::make_shared<Parameter>(std::vector<int64_t>{out, in}, Init::normal(0.3))) {
    add("weight", weight_);
  }
  void split_columns(const Axis& axis) override {
    weight_->shard(axis, 0, Split::balanced(weight_->shape()[0], axis.size()));
  }

 protected:
  std::optional<Placement> accepts(const DTensor& /*x*/) const override {
    if (!weight_->is_split()) return std::nullopt;
    return Fanout{};
  }
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    if (!weight_->is_split()) return x.with(affine(x.local(), weight_->use(), std::nullopt));
    const at::Tensor y = affine(x.local(), weight_->use().detach(), std::nullopt);
    return x.with(y, Shard{static_cast<int>(x.dim()) - 1, weight_->placement().split()});
  }

 private:
  std::shared_ptr<Parameter> weight_;
};

/// Gathers the last dim. The wrong backward treats the complete gradient of every rank as a partial
/// sum.
class Gather : public Layer {
 public:
  explicit Gather(bool wrong) : wrong_(wrong) {}

 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    if (!x.placement().is_shard()) return x;
    if (!wrong_) return x.redistribute(Replicate{});
    const Shards shards{x.axis(), x.placement(), "gather"};
    return x.with(differentiable(
                      "gather", x.local(), [&](const at::Tensor& t) { return shards.gather(t); },
                      [shards](const at::Tensor& g) { return shards.sum_and_slice(g); }),
                  Replicate{});
  }

 private:
  bool wrong_;
};

/// Attention with one matrix for q, k and v, stored one after the other; `equal_runs` is kQkvSlice.
class FusedAttention : public Layer {
 public:
  FusedAttention(const AttentionOptions& options, bool equal_runs)
      : options_(options),
        equal_runs_(equal_runs),
        qkv_({.in_features = options.hidden,
              .out_features = 3 * options.num_heads * options.head_dim,
              .init = Init::normal(0.3)}),
        out_({.in_features = options.num_heads * options.head_dim,
              .out_features = options.hidden,
              .init = Init::normal(0.3)}),
        attention_(options) {
    add("qkv", qkv_);
    add("out", out_);
  }
  void prepare_split(const Axis& axis) override {
    query_shard_ = attention_.shard(axis).query;
    out_.set_row_shards(query_shard_);
    const int64_t width = query_shard_->whole();
    if (equal_runs_) {
      qkv_.set_column_shards(Split::balanced(3 * width, axis.size(), 3 * options_.head_dim));
      return;
    }
    std::vector<std::vector<Range>> ranges;
    for (int r = 0; r < axis.size(); ++r) {
      const Range heads = query_shard_->ranges(r).front();
      ranges.emplace_back();
      for (const int64_t part : {int64_t{0}, width, 2 * width}) {
        ranges.back().push_back({heads.begin + part, heads.end + part});
      }
    }
    qkv_.set_column_shards(Split::intern(3 * width, ranges));
  }
  void check_split(const Axis& axis) override {
    if (qkv_.is_column_split()) attention_.set_split(axis);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor qkv = qkv_(x, context);
    const auto parts = qkv.local().chunk(3, -1);
    const auto part = [&](int64_t i) {
      const at::Tensor& local = parts[static_cast<size_t>(i)];
      return qkv.is_split() ? qkv.with(local, Shard{2, query_shard_}) : qkv.with(local);
    };
    return out_(mine(attention_(part(0), part(1), part(2), path(), context)), context);
  }

 private:
  AttentionOptions options_;
  bool equal_runs_;
  SplitPtr query_shard_;
  Linear qkv_, out_;
  HeadAttention attention_;
};

/// Grouped-query attention with its own map from query heads to key heads; `first_ranks_map` is
/// kKvHeadMap.
class GroupedAttention : public Layer {
 public:
  GroupedAttention(const AttentionOptions& o, bool first_ranks_map)
      : options_(o),
        first_ranks_map_(first_ranks_map),
        q_({.in_features = o.hidden, .out_features = o.num_heads * o.head_dim}),
        k_({.in_features = o.hidden, .out_features = o.num_kv_heads * o.head_dim}),
        v_({.in_features = o.hidden, .out_features = o.num_kv_heads * o.head_dim}),
        out_({.in_features = o.num_heads * o.head_dim, .out_features = o.hidden}) {
    add("q", q_);
    add("k", k_);
    add("v", v_);
    add("out", out_);
    set_map(1, 0);
  }
  void prepare_split(const Axis& axis) override {
    const HeadShard shard = set_map(axis.size(), first_ranks_map_ ? 0 : axis.rank());
    q_.set_column_shards(shard.query);
    k_.set_column_shards(shard.kv);
    v_.set_column_shards(shard.kv);
    out_.set_row_shards(shard.query);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor q = q_(x, context);
    const DTensor k = k_(x, context);
    const DTensor v = v_(x, context);
    split_work({&q, &k, &v});
    const at::Tensor y =
        attend(heads(q), heads(k), heads(v), {.kv_head = kv_head_, .dropout = {}}, context);
    return out_(mine(q.with(y.transpose(1, 2).flatten(2))), context);
  }

 private:
  HeadShard set_map(int ranks, int rank) {
    const AttentionOptions& o = options_;
    const HeadShard shard = HeadShard::make(o.num_heads, o.num_kv_heads, o.head_dim, ranks);
    kv_head_ = kv_head_of(shard, o.num_heads, o.num_kv_heads, rank);
    return shard;
  }
  [[nodiscard]] at::Tensor heads(const DTensor& t) const {
    const at::Tensor& x = t.local();
    return x.view({x.size(0), x.size(1), -1, options_.head_dim}).transpose(1, 2);
  }

  AttentionOptions options_;
  bool first_ranks_map_;
  Linear q_, k_, v_, out_;
  at::Tensor kv_head_;
};

/// Computes its mask by the position in this rank's shard, so every rank has the same mask
/// (kLocalDropout).
class LocalDropout : public Layer {
 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    if (!context.training) return x;
    const DTensor as_whole(x.local(), Axis(), Replicate{});
    return x.with(x.local() * dropout_mask(as_whole, 0.3, path(), context));
  }
};

struct FaultyOptions {
  Fault fault = Fault::kNone;
  int64_t vocab = 13, hidden = 6, heads = 6, kv_heads = 3, head_dim = 4, inner = 12;
};

/// x + attention(norm(x)), x + grouped attention(x), x + down(relu(up(x))).
class FaultyBlock : public Layer {
 public:
  explicit FaultyBlock(const FaultyOptions& o)
      : norm_(o.hidden, 1e-5),
        attn_({.hidden = o.hidden,
               .num_heads = o.heads,
               .num_kv_heads = o.heads,
               .head_dim = o.head_dim,
               .rotary = {}},
              o.fault == Fault::kQkvSlice),
        grouped_({.hidden = o.hidden,
                  .num_heads = o.heads,
                  .num_kv_heads = o.kv_heads,
                  .head_dim = o.head_dim,
                  .rotary = {}},
                 o.fault == Fault::kKvHeadMap) {
    if (o.fault == Fault::kNoAllReduce) {
      up_ = std::make_unique<ColumnsWithoutAllReduce>(o.hidden, o.inner);
    } else if (o.fault == Fault::kDetachedWeight) {
      up_ = std::make_unique<DetachedColumns>(o.hidden, o.inner);
    } else {
      up_ =
          std::make_unique<Linear>(LinearOptions{.in_features = o.hidden, .out_features = o.inner});
    }
    if (o.fault == Fault::kLocalDropout) {
      drop_ = std::make_unique<LocalDropout>();
    } else {
      drop_ = std::make_unique<Dropout>(0.3);
    }
    if (o.fault == Fault::kBiasOnEveryRank) {
      down_ = std::make_unique<BiasInSum>(o.inner, o.hidden);
    } else {
      down_ =
          std::make_unique<Linear>(LinearOptions{.in_features = o.inner, .out_features = o.hidden});
    }
    add("norm", norm_);
    add("attn", attn_);
    add("grouped", grouped_);
    add("up", *up_);
    add("drop", *drop_);
    add("down", *down_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor h = x + attn_(norm_(x, context), context);
    const DTensor g = h + grouped_(h, context);
    const auto relu = [](const at::Tensor& t) { return at::relu(t); };
    return g + (*down_)((*drop_)(map(relu, (*up_)(g, context)), context), context);
  }

 private:
  RmsNorm norm_;
  FusedAttention attn_;
  GroupedAttention grouped_;
  std::unique_ptr<Layer> up_, drop_, down_;
};

/// Embedding, two blocks, head, gather.
class FaultyModel : public Model {
 public:
  explicit FaultyModel(const FaultyOptions& o)
      : Model(Json::parse("{}", "faulty"), {.vocab_size = o.vocab,
                                            .max_positions = 64,
                                            .eos_ids = {},
                                            .bos_id = {},
                                            .pad_id = {},
                                            .labels = {}}),
        embed_({.num_embeddings = o.vocab, .embedding_dim = o.hidden, .init = Init::normal(1)}),
        first_(healthy(o)),
        second_(o),
        head_({.in_features = o.hidden, .out_features = o.vocab}),
        gather_(o.fault == Fault::kGatherBackward) {
    add("embed", embed_);
    add("first", first_);
    add("second", second_);
    add("head", head_);
    add("gather", gather_);
    name_tree();
  }
  Plan plan(bool /*sequence_parallel*/) const override {
    return {{"embed", Rowwise{}},
            {"*.attn.qkv", Colwise{}},
            {"*.grouped.{q,k,v}", Colwise{}},
            {"*.{attn,grouped}.out", Rowwise{}},
            {"*.up", Colwise{}},
            {"*.down", Rowwise{}},
            {"head", Colwise{}}};
  }
  std::string task() const override { return "mlm"; }  // its attention keeps no cache

 private:
  static FaultyOptions healthy(FaultyOptions options) {
    options.fault = Fault::kNone;
    return options;
  }
  Embedding embed_;
  FaultyBlock first_, second_;
  Linear head_;
  Gather gather_;
};

}  // namespace cleave::test
