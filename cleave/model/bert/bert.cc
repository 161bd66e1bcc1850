#include "cleave/model/bert/bert.h"

#include "cleave/model/flops.h"

namespace cleave::inline model {
namespace {

std::unique_ptr<Linear> make_scores(const BertConfig& c, int64_t num_classes) {
  return std::make_unique<Linear>(LinearOptions{.in_features = c.facts.hidden,
                                                .out_features = num_classes,
                                                .init = Init::normal(c.init_range),
                                                .least_bits = 8});
}

}  // namespace

Bert::Bert(const Json& json) : Bert(json, BertConfig::from_json(json)) {}

Bert::Bert(const Json& json, const BertConfig& config)
    : Model(json, config.facts), config_(config), embeddings_(config_) {
  const BertHead head = config_.head;
  bert_.add("embeddings", embeddings_);
  for (int64_t i = 0; i < config_.facts.num_layers; ++i) {
    layers_.push_back(std::make_unique<BertLayer>(config_));
    encoder_.add(str("layer.", i), *layers_.back());
  }
  bert_.add(is_distilbert() ? "transformer" : "encoder", encoder_);
  const bool has_pooler = config_.family == BertFamily::kBert
                              ? head != BertHead::kMaskedLm
                              : head == BertHead::kNone && !is_distilbert();
  if (has_pooler) {
    pooler_ = std::make_unique<BertPooler>(config_);
    bert_.add("pooler", *pooler_);
  }
  // A BertModel's files have no prefix "bert."; plans may use it anyway.
  head == BertHead::kNone ? add("", bert_, config_.prefix()) : add(config_.prefix(), bert_, "");
  if (head == BertHead::kMaskedLm || head == BertHead::kPreTraining) add_predictions();
  if (head == BertHead::kPreTraining) {
    seq_relationship_ = make_scores(config_, 2);
    cls_.add("seq_relationship", *seq_relationship_);
  }
  if (head == BertHead::kClassifier) add_classifier();
}

void Bert::add_predictions() {
  predictions_ = std::make_unique<BertPredictions>(
      config_, config_.tied ? embeddings_.word_weight() : nullptr);
  if (is_distilbert()) {
    add("", *predictions_, "predictions");
  } else if (config_.family == BertFamily::kRoberta) {
    add("lm_head", *predictions_);
  } else {
    cls_.add("predictions", *predictions_);
    add("cls", cls_);
  }
}

void Bert::add_classifier() {
  if (config_.family == BertFamily::kBert) {
    dropout_ = std::make_unique<Dropout>(config_.classifier_dropout);
    classifier_ = make_scores(config_, static_cast<int64_t>(config_.facts.labels.size()));
    add("dropout", *dropout_);
  } else {
    classifier_ = std::make_unique<FirstTokenClassifier>(config_);
  }
  is_distilbert() ? add("", *classifier_, "head") : add("classifier", *classifier_);
}

Plan Bert::plan(bool sequence_parallel) const {
  const Placement between = sequence_parallel ? Placement(Shard{1}) : Placement(Replicate{});
  const std::string trunk = config_.prefix();
  Plan plan = {{trunk + ".embeddings.word_embeddings", Rowwise{.output = between}}};
  if (is_distilbert()) {
    const std::string layer = trunk + ".transformer.layer.*.";
    plan.insert(plan.end(), {{layer + "attention.{q_lin,k_lin,v_lin}", Colwise{}},
                             {layer + "attention.out_lin", Rowwise{.output = between}},
                             {layer + "ffn.lin1", Colwise{}},
                             {layer + "ffn.lin2", Rowwise{.output = between}}});
  } else {
    const std::string layer = trunk + ".encoder.layer.*.";
    plan.insert(plan.end(), {{layer + "attention.self.{query,key,value}", Colwise{}},
                             {layer + "attention.output.dense", Rowwise{.output = between}},
                             {layer + "intermediate.dense", Colwise{}},
                             {layer + "output.dense", Rowwise{.output = between}}});
  }
  // The loss reads sharded logits.
  if (predictions_) plan.emplace_back(decoder_name(), Colwise{.output = Shard{-1}});
  return plan;
}

std::string Bert::decoder_name() const {
  return is_distilbert() ? "vocab_projector" : str(predictions_name(), ".decoder");
}

const char* Bert::predictions_name() const {
  return config_.family == BertFamily::kRoberta ? "lm_head" : "cls.predictions";
}

std::vector<Layer*> Bert::trunk() {
  std::vector<Layer*> out{&embeddings_};
  for (const auto& layer : layers_) out.push_back(layer.get());
  return out;
}

std::vector<Layer*> Bert::sequence() {
  std::vector<Layer*> out = trunk();
  if (predictions_) out.push_back(predictions_.get());
  if (classifier_ && pooler_) out.insert(out.end(), {pooler_.get(), dropout_.get()});
  if (classifier_) out.push_back(classifier_.get());
  return out;
}

DTensor Bert::hidden(const DTensor& ids, const Context& context) {
  DTensor x = ids;
  for (Layer* layer : trunk()) x = (*layer)(x, context);
  return x;
}

std::string Bert::task() const {
  if (predictions_) return "mlm";
  if (!classifier_) return "features";
  return config_.classifier_task;
}

double Bert::train_flops_per_token(int64_t seq_len) {
  std::vector<Layer*> of_all_tokens = trunk();
  if (predictions_) {  // without its own parameter, which is the decoder's bias once more
    for (Layer* child : predictions_->children()) of_all_tokens.push_back(child);
  }
  return train_flops_of(of_all_tokens, seq_len);
}

std::vector<std::string> Bert::other_names(const std::string& parameter) const {
  std::vector<std::string> names{parameter};
  // The converted weights that Google published call a norm's parts gamma and beta.
  const auto replaced = [&](std::string_view end, std::string_view by) {
    if (!parameter.ends_with(end)) return;
    names.push_back(parameter.substr(0, parameter.size() - end.size()) + std::string(by));
  };
  replaced("LayerNorm.weight", "LayerNorm.gamma");
  replaced("LayerNorm.bias", "LayerNorm.beta");
  if (!is_distilbert()) {
    const std::string head = predictions_name();
    replaced(head + ".bias", head + ".decoder.bias");
    replaced(head + ".decoder.bias", head + ".bias");
  }
  // A BertModel can load the file of a model with a head, and the reverse.
  const std::string prefix = str(config_.prefix(), '.');
  for (size_t i = 0, count = names.size(); i < count; ++i) {
    if (config_.head == BertHead::kNone) {
      names.push_back(prefix + names[i]);
    } else if (names[i].starts_with(prefix)) {
      names.push_back(names[i].substr(prefix.size()));
    }
  }
  names.erase(names.begin());
  return names;
}

bool Bert::ignores(const std::string& tensor) const {
  const auto is_below = [&](std::string_view part) {
    return tensor.starts_with(part) || tensor.starts_with(str(config_.prefix(), '.', part));
  };
  if (is_below("embeddings.position_ids")) return true;
  if (tensor == decoder_name() + ".weight" && predictions_) return config_.tied;
  if (is_distilbert()) return tensor.starts_with("vocab_") && predictions_ == nullptr;
  const std::string head = predictions_name();
  if (tensor == head + (config_.tied ? ".decoder.bias" : ".bias")) return predictions_ != nullptr;
  // Heads of the pretrained model that this model does not have.
  if (is_below("pooler.")) return pooler_ == nullptr;
  if (tensor.starts_with("cls.seq_relationship.")) return seq_relationship_ == nullptr;
  if (tensor.starts_with(head + '.')) return predictions_ == nullptr;
  return false;
}

std::unique_ptr<Model> make_bert(const Json& config) {
  return std::make_unique<Bert>(config);
}

}  // namespace cleave::inline model
