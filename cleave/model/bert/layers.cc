#include "cleave/model/bert/layers.h"

#include <ATen/ATen.h>

#include "cleave/nn/subject.h"

namespace cleave::inline model {
namespace {

EmbeddingOptions table_of(int64_t rows, const BertConfig& c,
                          std::optional<int64_t> padding_idx = {}) {
  return {.num_embeddings = rows,
          .embedding_dim = c.facts.hidden,
          .init = Init::normal(c.init_range),
          .padding_idx = padding_idx};
}

LinearOptions linear_of(int64_t in, int64_t out, const BertConfig& c) {
  return {.in_features = in, .out_features = out, .init = Init::normal(c.init_range)};
}

/// The options of the matrix that computes the scores of words or classes.
LinearOptions scores_of(int64_t count, const BertConfig& c) {
  LinearOptions options = linear_of(c.facts.hidden, count, c);
  options.least_bits = 8;
  return options;
}

LinearOptions square(const BertConfig& c) {
  return linear_of(c.facts.hidden, c.facts.hidden, c);
}

AttentionOptions attention_of(const BertConfig& c) {
  return {.hidden = c.facts.hidden,
          .num_heads = c.facts.num_heads,
          .num_kv_heads = c.facts.num_heads,
          .head_dim = c.facts.hidden / c.facts.num_heads,
          .causal = false,
          .dropout = c.attention_dropout,
          .rotary = {}};
}

}  // namespace

BertEmbeddings::BertEmbeddings(const BertConfig& c)
    : pad_id_(c.family == BertFamily::kRoberta ? c.facts.pad_id : std::nullopt),
      max_positions_(c.facts.max_positions),
      word_embeddings_(table_of(c.facts.vocab_size, c, c.facts.pad_id)),
      position_embeddings_(table_of(c.first_position() + c.facts.max_positions, c, pad_id_)),
      norm_(c.facts.hidden, c.norm_eps),
      dropout_(c.hidden_dropout) {
  add("word_embeddings", word_embeddings_);
  add("position_embeddings", position_embeddings_);
  if (c.num_token_types > 0) {
    add("token_type_embeddings", token_type_embeddings_.emplace(table_of(c.num_token_types, c)));
  }
  add("LayerNorm", norm_);
  add("dropout", dropout_);
}

Tensor BertEmbeddings::positions_of(const Tensor& ids, const Context& context) const {
  if (pad_id_) {
    const Tensor is_token = ids.ne(*pad_id_).to(at::kLong);
    return (is_token.cumsum(1) * is_token).add_(*pad_id_);
  }
  const Tensor positions = context.positions.defined()
                               ? context.positions.to(ids.device(), /*non_blocking=*/true)
                               : at::arange(ids.size(1), ids.options());
  return positions.expand_as(ids);
}

DTensor BertEmbeddings::forward(const DTensor& ids, const Context& context) {
  CLEAVE_CHECK(
      ids.size(1) <= max_positions_, Code::kShape, subject(path()), "sequences of ", ids.size(1),
      " ids; the model has max_position_embeddings=", position_embeddings_.weight()->shape()[0],
      pad_id_ ? str(", for ", max_positions_, " tokens") : "", "; shorten them");
  const DTensor words = word_embeddings_(ids, context);
  // Shard the ids of the other tables like the words, so that every rank adds its own tokens.
  const auto sharded = [&](const Tensor& whole) {
    return DTensor::distribute(whole, words.axis(), words.placement());
  };
  DTensor x = words;
  if (token_type_embeddings_) {
    // RoBERTa's table has one row, and its tokenizer's types do not count.
    const bool has_types = token_type_embeddings_->weight()->shape()[0] > 1;
    const Tensor types = has_types && context.token_types.defined() ? context.token_types
                                                                    : at::zeros_like(ids.local());
    x = x + (*token_type_embeddings_)(sharded(types), context);
  }
  x = x + position_embeddings_(sharded(positions_of(ids.local(), context)), context);
  return dropout_(norm_(mine(x), context), context);
}

BertAttention::BertAttention(const BertConfig& c)
    : query_(square(c)),
      key_(square(c)),
      value_(square(c)),
      dense_(square(c)),
      heads_(attention_of(c)),
      dropout_(c.hidden_dropout) {
  if (c.family == BertFamily::kDistilBert) {
    add("q_lin", query_);
    add("k_lin", key_);
    add("v_lin", value_);
    add("out_lin", dense_);
    return;
  }
  self_.add("query", query_);
  self_.add("key", key_);
  self_.add("value", value_);
  output_.add("dense", dense_);
  output_.add("dropout", dropout_);
  output_.add("LayerNorm", norm_.emplace(c.facts.hidden, c.norm_eps));
  add("self", self_);
  add("output", output_);
}

void BertAttention::prepare_split(const Axis& axis) {
  const HeadShard shard = heads_.shard(axis);
  for (Linear* projection : {&query_, &key_, &value_}) projection->set_column_shards(shard.query);
  dense_.set_row_shards(shard.query);
}

void BertAttention::check_split(const Axis& axis) {
  const bool split = query_.is_column_split();
  const bool together = key_.is_column_split() == split && value_.is_column_split() == split &&
                        dense_.is_row_split() == split && !dense_.is_column_split();
  CLEAVE_CHECK(together, Code::kShape, path(), ": ", query_.path(), ", ", key_.path(), ", ",
               value_.path(), " and ", dense_.path(),
               " belong together; give the first three the style colwise and the "
               "last rowwise, or give none of them a style");
  if (split) heads_.set_split(axis);
}

DTensor BertAttention::forward(const DTensor& x, const Context& context) {
  const DTensor shared = query_.shared_input(x);
  const DTensor q = query_(shared, context);
  const DTensor k = key_(shared, context);
  const DTensor v = value_(shared, context);
  const DTensor y = dense_(mine(heads_(q, k, v, path(), context)), context);
  return norm_ ? (*norm_)(mine(dropout_(y, context) + x), context) : y;
}

BertLayer::BertLayer(const BertConfig& c)
    : attention_(c),
      activation_(c.activation),
      up_(linear_of(c.facts.hidden, c.intermediate, c)),
      down_(linear_of(c.intermediate, c.facts.hidden, c)),
      dropout_(c.hidden_dropout),
      norm_(c.facts.hidden, c.norm_eps) {
  add("attention", attention_);
  if (c.family == BertFamily::kDistilBert) {
    add("sa_layer_norm", attention_norm_.emplace(c.facts.hidden, c.norm_eps));
    output_.add("lin1", up_);
    output_.add("lin2", down_);
    output_.add("dropout", dropout_);
    add("ffn", output_);
    add("output_layer_norm", norm_);
    return;
  }
  intermediate_.add("dense", up_);
  output_.add("dense", down_);
  output_.add("dropout", dropout_);
  output_.add("LayerNorm", norm_);
  add("intermediate", intermediate_);
  add("output", output_);
}

DTensor BertLayer::forward(const DTensor& x, const Context& context) {
  DTensor h = attention_(x, context);
  if (attention_norm_) h = (*attention_norm_)(mine(h + x), context);
  const auto act = [this](const Tensor& t) { return activate(activation_, t); };
  const DTensor y = down_(mine(map(act, up_(h, context))), context);
  return norm_(mine(dropout_(y, context) + h), context);
}

BertPooler::BertPooler(const BertConfig& c) : dense_(square(c)) {
  add("dense", dense_);
}

std::optional<Placement> BertPooler::accepts(const DTensor& x) const {
  return x.placement().is_shard() ? std::optional<Placement>(Replicate{}) : std::nullopt;
}

DTensor BertPooler::forward(const DTensor& x, const Context& context) {
  const DTensor first = mine(x.with(x.local().select(1, 0)));
  return map([](const Tensor& t) { return t.tanh(); }, dense_(first, context));
}

FirstTokenClassifier::FirstTokenClassifier(const BertConfig& c)
    : is_distilbert_(c.family == BertFamily::kDistilBert),
      dense_(square(c)),
      out_proj_(scores_of(static_cast<int64_t>(c.facts.labels.size()), c)),
      dropout_(is_distilbert_ ? 0 : c.classifier_dropout),
      second_dropout_(c.classifier_dropout) {
  if (is_distilbert_) {
    add("pre_classifier", dense_);
    add("dropout", second_dropout_);
    add("classifier", out_proj_);
    return;
  }
  add("dropout", dropout_);
  add("dense", dense_);
  add("second_dropout", second_dropout_);
  add("out_proj", out_proj_);
}

std::optional<Placement> FirstTokenClassifier::accepts(const DTensor& x) const {
  return x.placement().is_shard() ? std::optional<Placement>(Replicate{}) : std::nullopt;
}

DTensor FirstTokenClassifier::forward(const DTensor& x, const Context& context) {
  const DTensor first = mine(x.with(x.local().select(1, 0)));
  const DTensor hidden = dense_(mine(dropout_(first, context)), context);
  const auto act = [this](const Tensor& t) { return is_distilbert_ ? t.relu() : t.tanh(); };
  const DTensor active = map(act, hidden);
  return out_proj_(mine(second_dropout_(active, context)), context);
}

BertPredictions::BertPredictions(const BertConfig& c, const std::shared_ptr<Parameter>& tied)
    : activation_(c.family == BertFamily::kRoberta ? Activation::kGelu : c.activation),
      dense_(square(c)),
      norm_(c.facts.hidden, c.norm_eps),
      decoder_(scores_of(c.facts.vocab_size, c)),
      bias_(decoder_.bias()) {
  if (tied) decoder_.tie_weight(tied);
  if (c.family == BertFamily::kDistilBert) {
    add("vocab_transform", dense_);
    add("vocab_layer_norm", norm_);
    add("vocab_projector", decoder_);
    return;
  }
  // transformers adds the decoder's own bias. With a tied matrix its files name it
  // predictions.bias.
  if (tied) add("bias", bias_);
  if (c.family == BertFamily::kRoberta) {
    add("dense", dense_);
    add("layer_norm", norm_);
  } else {
    transform_.add("dense", dense_);
    transform_.add("LayerNorm", norm_);
    add("transform", transform_);
  }
  add("decoder", decoder_);
}

DTensor BertPredictions::forward(const DTensor& x, const Context& context) {
  const auto act = [this](const Tensor& t) { return activate(activation_, t); };
  return decoder_(norm_(mine(map(act, dense_(x, context))), context), context);
}

}  // namespace cleave::inline model
