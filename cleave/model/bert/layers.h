#pragma once
#include "cleave/model/bert/config.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"

namespace cleave::inline model {

/// dropout(norm(word + position + token type embedding)).
///
///   ids [B, T] int64   result [B, T, D], in the layout that the plan gives word_embeddings' output
///
/// Context has positions and token types, of which DistilBERT has none; RoBERTa counts the
/// positions of the tokens that are not the pad id. Throws Error(kShape) for more tokens than
/// positions.
class BertEmbeddings : public Layer {
 public:
  explicit BertEmbeddings(const BertConfig& config);
  /// The word embedding, to which the decoder can be tied.
  [[nodiscard]] const std::shared_ptr<Parameter>& word_weight() const {
    return word_embeddings_.weight();
  }

 protected:
  DTensor forward(const DTensor& ids, const Context& context) override;

 private:
  /// The rows of the table of positions, in the shape of `ids` [B, T].
  [[nodiscard]] Tensor positions_of(const Tensor& ids, const Context& context) const;

  std::optional<int64_t> pad_id_;  // of RoBERTa
  int64_t max_positions_;
  Embedding word_embeddings_, position_embeddings_;
  std::optional<Embedding> token_type_embeddings_;
  LayerNorm norm_;
  Dropout dropout_;
};

/// norm(x + dropout(dense(attention(x)))), or DistilBERT's dense(attention(x)); every token attends
/// to all real tokens. x, result [B, T, D].
class BertAttention : public Layer, public HasHeads {
 public:
  explicit BertAttention(const BertConfig& config);
  void prepare_split(const Axis& axis) override;
  void check_split(const Axis& axis) override;
  [[nodiscard]] HeadAttention& heads() override { return heads_; }
  [[nodiscard]] double forward_flops_per_token(int64_t seq_len) const override {
    return heads_.forward_flops_per_token(seq_len);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  LayerGroup self_, output_;
  Linear query_, key_, value_, dense_;
  HeadAttention heads_;
  Dropout dropout_;
  std::optional<LayerNorm> norm_;
};

/// One layer of the encoder: attention, for DistilBERT h = norm(x + attention), then
/// norm(h + dropout(mlp(h))). x, result [B, T, D].
class BertLayer : public Layer {
 public:
  explicit BertLayer(const BertConfig& config);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  BertAttention attention_;
  std::optional<LayerNorm> attention_norm_;  // of DistilBERT
  LayerGroup intermediate_, output_;         // DistilBERT has one group, output_, called ffn
  Activation activation_;
  Linear up_, down_;
  Dropout dropout_;
  LayerNorm norm_;
};

/// tanh(dense(first token)). x [B, T, D], result [B, D].
class BertPooler : public Layer {
 public:
  explicit BertPooler(const BertConfig& config);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;
  /// Only one rank has the first token of a sharded sequence, so all ranks gather the whole.
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override;

 private:
  Linear dense_;
};

/// RoBERTa's classifier: out(dropout(tanh(dense(dropout(first token))))), or DistilBERT's:
/// out(dropout(relu(dense(first token)))). x [B, T, D], result [B, C].
class FirstTokenClassifier : public Layer {
 public:
  explicit FirstTokenClassifier(const BertConfig& config);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;
  /// Only one rank has the first token of a sharded sequence, so all ranks gather the whole.
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override;

 private:
  bool is_distilbert_;
  Linear dense_, out_proj_;
  Dropout dropout_, second_dropout_;
};

/// Logits of every word at every token. x [B, T, D], result [B, T, V].
class BertPredictions : public Layer {
 public:
  /// `tied`: the word embedding's matrix, or null if the decoder has its own. In files the bias is
  /// predictions.bias with a tied matrix, else predictions.decoder.bias; RoBERTa's head is called
  /// lm_head instead of cls.predictions. DistilBERT's has vocab_projector.bias in both cases.
  BertPredictions(const BertConfig& config, const std::shared_ptr<Parameter>& tied);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  LayerGroup transform_;
  Activation activation_;
  Linear dense_;
  LayerNorm norm_;
  Linear decoder_;
  std::shared_ptr<Parameter> bias_;  // the decoder's
};

}  // namespace cleave::inline model
