#pragma once
#include <string_view>

#include "cleave/model/facts.h"

namespace cleave::inline model {

/// The variants of BERT's layers.
enum class BertFamily : uint8_t { kBert, kRoberta, kDistilBert };

/// A model_type of config.json with BERT's layers.
struct BertType {
  std::string_view model_type;
  std::string_view architecture;  ///< "XLMRoberta" of "XLMRobertaForMaskedLM"
  BertFamily family;
};

/// The type with this name; null if it has other layers.
const BertType* find_bert_type(std::string_view model_type);

/// The head on the last layer of a model of these families; `architectures` in config.json names
/// it.
enum class BertHead : uint8_t {
  kNone,         ///< BertModel: hidden states; names without "bert."
  kMaskedLm,     ///< BertForMaskedLM
  kPreTraining,  ///< BertForPreTraining: masked words and next sentence; of BERT only
  kClassifier,   ///< BertForSequenceClassification
};

/// Whether positions begin after the padding id, which such a model must have: RoBERTa's.
bool begins_after_padding(const Json& config);

/// The config.json of the types above.
struct BertConfig {
  ModelFacts facts;  ///< max_positions: those of tokens
  BertFamily family = BertFamily::kBert;
  BertHead head = BertHead::kMaskedLm;
  int64_t intermediate = 0;
  int64_t num_token_types = 2;  ///< 0: none
  double norm_eps = 1e-12;
  double init_range = 0.02;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double classifier_dropout = 0.1;
  Activation activation = Activation::kGelu;
  bool tied = true;               ///< the decoder's matrix is the word embedding
  std::string classifier_task{};  ///< "classify", "multilabel" or "regression"; of that head

  /// Rows of the table of positions before that of the first token: RoBERTa counts from pad_id + 1,
  /// and padding has the row pad_id.
  [[nodiscard]] int64_t first_position() const {
    return family == BertFamily::kRoberta ? facts.pad_id.value() + 1 : 0;
  }
  /// The first part of the names in files.
  [[nodiscard]] const char* prefix() const;

  /// Throws Error(kFormat) naming key, value, range and byte; also for variants of the published
  /// models (a decoder, relative positions).
  static BertConfig from_json(const Json& json);
};

}  // namespace cleave::inline model
