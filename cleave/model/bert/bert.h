#pragma once
#include <memory>

#include "cleave/model/bert/layers.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

/// A BERT without memory from its config.json, with Hugging Face's names: BertModel,
/// BertForMaskedLM (decoder tied to the word embedding), BertForPreTraining,
/// BertForSequenceClassification; or a RoBERTa, XLM-RoBERTa, CamemBERT or DistilBERT with the same
/// names except pre-training (RobertaModel, DistilBertForMaskedLM).
///
/// The result depends on `architectures`: hidden states [B, T, D]; logits of words [B, T, V], for
/// pre-training too; logits of classes [B, C]. For another loss, call hidden() and the heads.
class Bert : public Model {
 public:
  explicit Bert(const Json& config);

  [[nodiscard]] Plan plan(bool sequence_parallel) const override;
  [[nodiscard]] std::vector<Layer*> sequence() override;
  [[nodiscard]] std::string task() const override;
  [[nodiscard]] double train_flops_per_token(int64_t seq_len) override;
  [[nodiscard]] std::vector<std::string> other_names(const std::string& parameter) const override;
  [[nodiscard]] bool ignores(const std::string& tensor) const override;

  /// Ids [B, T] to the last layer's hidden states [B, T, D].
  DTensor hidden(const DTensor& ids, const Context& context);
  /// Hidden states to the pooled first token [B, D]; null for a masked LM, a classifier other than
  /// BERT's, and DistilBERT.
  [[nodiscard]] Layer* pooler() { return pooler_.get(); }
  /// Hidden states to logits of words [B, T, V]; null without that head.
  [[nodiscard]] Layer* predictions() { return predictions_.get(); }
  /// Pooled token to logits of "is the next sentence" and "is not" [B, 2]; null except in
  /// pre-training.
  [[nodiscard]] Layer* seq_relationship() { return seq_relationship_.get(); }

 private:
  Bert(const Json& json, const BertConfig& config);
  void add_predictions();
  void add_classifier();
  [[nodiscard]] bool is_distilbert() const { return config_.family == BertFamily::kDistilBert; }
  /// The path of the head for words, except DistilBERT's, which has none.
  [[nodiscard]] const char* predictions_name() const;
  /// The path of the matrix that computes the logits of words.
  [[nodiscard]] std::string decoder_name() const;
  [[nodiscard]] std::vector<Layer*> trunk();

  BertConfig config_;
  LayerGroup bert_, encoder_, cls_;
  BertEmbeddings embeddings_;
  std::vector<std::unique_ptr<BertLayer>> layers_;
  std::unique_ptr<BertPooler> pooler_;
  std::unique_ptr<BertPredictions> predictions_;
  std::unique_ptr<Linear> seq_relationship_;
  std::unique_ptr<Dropout> dropout_;
  std::unique_ptr<Layer> classifier_;
};

/// A model of the types in bert/config.h, for the registry.
std::unique_ptr<Model> make_bert(const Json& config);

/// bert-tiny, bert-base and bert-large, masked language models.
std::vector<Preset> bert_presets();

/// roberta-base and roberta-large, masked language models.
std::vector<Preset> roberta_presets();

/// xlm-roberta-base and xlm-roberta-large, masked language models.
std::vector<Preset> xlm_roberta_presets();

/// distilbert-base, a masked language model.
std::vector<Preset> distilbert_presets();

}  // namespace cleave::inline model
