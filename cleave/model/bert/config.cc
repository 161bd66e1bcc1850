#include "cleave/model/bert/config.h"

#include "cleave/model/other_settings.h"

namespace cleave::inline model {
namespace {

BertHead read_head(const Json& json) {
  if (!json.has("architectures")) return BertHead::kNone;
  const Json list = json.at("architectures");
  if (list.size() != 1) list.fail("expected the name of one architecture");
  const std::string& name = list.at(0).as_string();
  if (name == "BertModel") return BertHead::kNone;
  if (name == "BertForMaskedLM") return BertHead::kMaskedLm;
  if (name == "BertForPreTraining") return BertHead::kPreTraining;
  if (name == "BertForSequenceClassification") return BertHead::kClassifier;
  list.at(0).fail(
      "expected BertModel, BertForMaskedLM, BertForPreTraining or BertForSequenceClassification");
}

void refuse_other_kinds(const Json& json) {
  refuse_other_settings(json);
  if (json.bool_or("is_decoder", false)) json.at("is_decoder").fail("only encoders are supported");
  if (json.string_or("position_embedding_type", "absolute") != "absolute") {
    json.at("position_embedding_type").fail("expected \"absolute\"");
  }
  constexpr const char* kKind = "single_label_classification";
  if (json.string_or("problem_type", kKind) != kKind) {
    json.at("problem_type").fail(str("expected \"", kKind, "\""));
  }
}

/// transformers takes a model with one label for a regression.
std::vector<std::string> read_classes(const Json& json) {
  std::vector<std::string> labels = read_labels(json);
  if (labels.size() == 1) {
    json.at(json.has("id2label") ? "id2label" : "num_labels")
        .fail(
            "one label makes this a regression model, as cross-encoders are; Cleave runs "
            "classifiers, of two labels or more");
  }
  return labels;
}

}  // namespace

BertConfig BertConfig::from_json(const Json& json) {
  refuse_other_kinds(json);
  BertConfig c;
  c.facts = read_facts(json, {.default_pad = 0});
  check_heads_divide(json, c.facts, {});
  c.head = read_head(json);
  if (c.head == BertHead::kClassifier) c.facts.labels = read_classes(json);
  c.intermediate = json.at("intermediate_size").as_int(1, kMostWidth);
  c.num_token_types = json.int_or("type_vocab_size", 2, 1, kMostWidth);
  c.norm_eps = json.number_or("layer_norm_eps", 1e-12, 0, 1);
  c.init_range = json.number_or("initializer_range", 0.02, 0, kMostInitRange);
  c.hidden_dropout = read_dropout(json, "hidden_dropout_prob", 0.1);
  c.attention_dropout = read_dropout(json, "attention_probs_dropout_prob", 0.1);
  c.classifier_dropout = read_dropout(json, "classifier_dropout", c.hidden_dropout);
  c.activation = read_activation(json, "hidden_act", "gelu");
  c.tied = json.bool_or("tie_word_embeddings", true);
  return c;
}

}  // namespace cleave::inline model
