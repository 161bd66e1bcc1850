// BERT for pre-training with the developer guide's two changes: self-attention and its output
// projection are parallel layers; everything else is replicated on every rank.
#pragma once
#include <memory>
#include <vector>

#include "cleave/compat/nxd.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/norm.h"
#include "data.h"

namespace bert_pretraining {

using cleave::Context;
namespace nxd = cleave::nxd;

struct BertConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 64;
  int64_t num_hidden_layers = 2;
  int64_t num_attention_heads = 4;
  int64_t intermediate_size = 256;
  int64_t max_position_embeddings = 128;
  double hidden_dropout_prob = 0.1;
  at::ScalarType dtype = at::kFloat;  // of the parallel layers
};

// Queries, keys and values of this rank's heads.
class ParallelSelfAttention : public cleave::LayerGroup {
 public:
  explicit ParallelSelfAttention(const BertConfig& config);
  // hidden [B, T, D] -> [B, T, D / tp]; mask [B, 1, 1, T]
  Tensor operator()(const Tensor& hidden, const Tensor& mask);

 private:
  int64_t num_attention_heads_;
  nxd::ColumnParallelLinear query_, key_, value_;
};

// Output projection (the sum over all heads) and the residual.
class ParallelSelfOutput : public cleave::LayerGroup {
 public:
  explicit ParallelSelfOutput(const BertConfig& config);
  // context [B, T, D / tp], input [B, T, D] -> [B, T, D]
  Tensor operator()(const Tensor& context, const Tensor& input, const Context& c);

 private:
  nxd::RowParallelLinear dense_;
  cleave::LayerNorm norm_;
  cleave::Dropout dropout_;
};

class BertLayer : public cleave::LayerGroup {
 public:
  explicit BertLayer(const BertConfig& config);
  Tensor operator()(const Tensor& hidden, const Tensor& mask, const Context& c);

 private:
  ParallelSelfAttention attention_;
  ParallelSelfOutput attention_output_;
  cleave::Linear intermediate_, output_;
  cleave::LayerNorm norm_;
  cleave::Dropout dropout_;
};

// The logits of the two tasks.
struct Scores {
  Tensor words;  // [B, P, V], at the masked positions
  Tensor next;   // [B, 2]
};

class BertForPreTraining : public cleave::LayerGroup {
 public:
  explicit BertForPreTraining(const BertConfig& config);
  Scores operator()(const Batch& batch, const Context& c);
  const BertConfig& config() const { return config_; }

 private:
  BertConfig config_;
  cleave::Embedding words_, positions_, types_;
  cleave::LayerNorm norm_;
  cleave::Dropout dropout_;
  std::vector<std::unique_ptr<BertLayer>> layers_;
  cleave::Linear pooler_, transform_;
  cleave::LayerNorm transform_norm_;
  cleave::Linear decoder_;
  std::shared_ptr<cleave::Parameter> decoder_bias_;  // cls.predictions.bias in files
  cleave::Linear seq_relationship_;
};

}  // namespace bert_pretraining
