#pragma once
#include "cleave/model/facts.h"

namespace cleave::inline model {

/// The head on a BERT's last layer; `architectures` in config.json names it.
enum class BertHead : uint8_t {
  kNone,         ///< BertModel: hidden states; names without "bert."
  kMaskedLm,     ///< BertForMaskedLM
  kPreTraining,  ///< BertForPreTraining: masked words and next sentence
  kClassifier,   ///< BertForSequenceClassification
};

/// The BERT family's config.json.
struct BertConfig {
  ModelFacts facts;
  BertHead head = BertHead::kMaskedLm;
  int64_t intermediate = 0;
  int64_t num_token_types = 2;
  double norm_eps = 1e-12;
  double init_range = 0.02;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double classifier_dropout = 0.1;
  Activation activation = Activation::kGelu;
  bool tied = true;  ///< the decoder's matrix is the word embedding

  /// Throws Error(kFormat) naming key, value, range and byte; also for variants of the published
  /// BERT (a decoder, relative positions, regression).
  static BertConfig from_json(const Json& json);
};

}  // namespace cleave::inline model
