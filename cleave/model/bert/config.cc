#include "cleave/model/bert/config.h"

#include "cleave/model/label_task.h"
#include "cleave/model/other_settings.h"

namespace cleave::inline model {
namespace {

constexpr BertType kTypes[] = {
    {.model_type = "bert", .architecture = "Bert", .family = BertFamily::kBert},
    {.model_type = "roberta", .architecture = "Roberta", .family = BertFamily::kRoberta},
    {.model_type = "xlm-roberta", .architecture = "XLMRoberta", .family = BertFamily::kRoberta},
    {.model_type = "camembert", .architecture = "Camembert", .family = BertFamily::kRoberta},
    {.model_type = "distilbert", .architecture = "DistilBert", .family = BertFamily::kDistilBert}};

BertHead read_head(const Json& json, const BertType& type) {
  if (!json.has("architectures")) return BertHead::kNone;
  const Json list = json.at("architectures");
  if (list.size() != 1) list.fail("expected the name of one architecture");
  const std::string& name = list.at(0).as_string();
  const std::string start(type.architecture);
  const bool is_bert = type.family == BertFamily::kBert;
  if (name == start + "Model") return BertHead::kNone;
  if (name == start + "ForMaskedLM") return BertHead::kMaskedLm;
  if (name == "BertForPreTraining" && is_bert) return BertHead::kPreTraining;
  if (name == start + "ForSequenceClassification") return BertHead::kClassifier;
  list.at(0).fail(str("expected ", start, "Model, ", start, "ForMaskedLM",
                      is_bert ? ", BertForPreTraining" : "", " or ", start,
                      "ForSequenceClassification"));
}

void refuse_other_kinds(const Json& json) {
  refuse_other_settings(json);
  if (json.bool_or("is_decoder", false)) json.at("is_decoder").fail("only encoders are supported");
  if (json.string_or("position_embedding_type", "absolute") != "absolute") {
    json.at("position_embedding_type").fail("expected \"absolute\"");
  }
}

void read_classes(const Json& json, BertConfig& c) {
  c.facts.labels = read_labels(json);
  c.classifier_task = label_task(json, c.facts.labels.size());
}

/// Takes the rows of the table of positions before that of the first token from max_positions.
void count_positions_of_tokens(const Json& json, BertConfig& c) {
  if (!c.facts.pad_id) json.at("pad_token_id").fail("positions begin after it; expected an id");
  c.facts.max_positions -= c.first_position();
  if (c.facts.max_positions >= 1) return;
  json.at(json.has("max_position_embeddings") ? "max_position_embeddings" : "pad_token_id")
      .fail(str("positions begin at pad_token_id + 1 = ", c.first_position(),
                "; none is left for tokens"));
}

BertConfig read_bert(const Json& json, const BertType& type) {
  BertConfig c;
  c.family = type.family;
  const bool is_roberta = c.family == BertFamily::kRoberta;
  c.facts = is_roberta ? read_facts(json, {.default_eos = 2, .default_pad = 1})
                       : read_facts(json, {.default_pad = 0});
  if (is_roberta) count_positions_of_tokens(json, c);
  check_heads_divide(json, c.facts, {});
  c.head = read_head(json, type);
  if (c.head == BertHead::kClassifier) read_classes(json, c);
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

BertConfig read_distilbert(const Json& json, const BertType& type) {
  constexpr FactNames kNames{
      .hidden = "dim", .num_layers = "n_layers", .num_heads = "n_heads", .default_pad = 0};
  BertConfig c;
  c.family = type.family;
  c.facts = read_facts(json, kNames);
  check_heads_divide(json, c.facts, kNames);
  c.head = read_head(json, type);
  if (c.head == BertHead::kClassifier) read_classes(json, c);
  c.intermediate = json.at("hidden_dim").as_int(1, kMostWidth);
  c.num_token_types = 0;
  c.init_range = json.number_or("initializer_range", 0.02, 0, kMostInitRange);
  c.hidden_dropout = read_dropout(json, "dropout", 0.1);
  c.attention_dropout = read_dropout(json, "attention_dropout", 0.1);
  c.classifier_dropout = read_dropout(json, "seq_classif_dropout", 0.2);
  c.activation = read_activation(json, "activation", "gelu");
  c.tied = json.bool_or("tie_word_embeddings", true);
  return c;
}

}  // namespace

const BertType* find_bert_type(std::string_view model_type) {
  for (const BertType& type : kTypes) {
    if (type.model_type == model_type) return &type;
  }
  return nullptr;
}

bool begins_after_padding(const Json& config) {
  const BertType* type = find_bert_type(config.string_or("model_type", ""));
  return type != nullptr && type->family == BertFamily::kRoberta;
}

BertConfig BertConfig::from_json(const Json& json) {
  refuse_other_kinds(json);
  const BertType* type = find_bert_type(json.string_or("model_type", ""));
  if (type == nullptr) type = &kTypes[0];
  return type->family == BertFamily::kDistilBert ? read_distilbert(json, *type)
                                                 : read_bert(json, *type);
}

const char* BertConfig::prefix() const {
  if (family == BertFamily::kBert) return "bert";
  return family == BertFamily::kRoberta ? "roberta" : "distilbert";
}

}  // namespace cleave::inline model
