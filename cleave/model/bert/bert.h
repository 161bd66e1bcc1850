#pragma once
#include <memory>

#include "cleave/model/bert/layers.h"
#include "cleave/model/model.h"

namespace cleave {

/// A BERT without memory from its config.json, with Hugging Face's names: BertModel,
/// BertForMaskedLM (decoder tied to the word embedding), BertForPreTraining,
/// BertForSequenceClassification.
///
/// The sequence gives, by `architectures`: hidden states [B, T, D]; scores of words [B, T, V], for
/// pre-training too; scores of classes [B, C]. A program with a loss of its own calls hidden() and
/// the heads.
class Bert : public Model {
 public:
  explicit Bert(const Json& config);

  [[nodiscard]] const ModelFacts& facts() const override { return config_.facts; }
  [[nodiscard]] Plan plan(bool sequence_parallel) const override;
  [[nodiscard]] std::vector<Layer*> sequence() override;
  [[nodiscard]] std::string task() const override;
  [[nodiscard]] double train_flops_per_token(int64_t seq_len) override;
  [[nodiscard]] std::vector<std::string> other_names(const std::string& parameter) const override;
  [[nodiscard]] bool ignores(const std::string& tensor) const override;

  /// Ids [B, T] to the states behind the last layer [B, T, D].
  DTensor hidden(const DTensor& ids, const Context& context);
  /// Hidden states to the pooled first token [B, D]; null for a masked LM.
  [[nodiscard]] Layer* pooler() { return pooler_.get(); }
  /// Hidden states to scores of words [B, T, V]; null without that head.
  [[nodiscard]] Layer* predictions() { return predictions_.get(); }
  /// Pooled token to scores of "follows" and "does not" [B, 2]; null but in pre-training.
  [[nodiscard]] Layer* seq_relationship() { return seq_relationship_.get(); }

 private:
  [[nodiscard]] std::vector<Layer*> trunk();

  BertConfig config_;
  LayerGroup bert_, encoder_, cls_;
  BertEmbeddings embeddings_;
  std::vector<std::unique_ptr<BertLayer>> layers_;
  std::unique_ptr<BertPooler> pooler_;
  std::unique_ptr<BertPredictions> predictions_;
  std::unique_ptr<Linear> seq_relationship_;
  std::unique_ptr<Dropout> dropout_;
  std::unique_ptr<Linear> classifier_;
};

/// A Bert, for the registry.
std::unique_ptr<Model> make_bert(const Json& config);

/// bert-tiny, bert-base and bert-large, masked language models; imdb-bert, the notebook's
/// classifier.
std::vector<Preset> bert_presets();

}  // namespace cleave
