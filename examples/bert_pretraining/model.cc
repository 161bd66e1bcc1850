#include "model.h"

#include <ATen/ATen.h>

namespace bert_pretraining {
namespace {

using cleave::Init;
using cleave::LinearOptions;

constexpr double kEps = 1e-12;
const Init kInit = Init::normal(0.02);

LinearOptions whole(int64_t in, int64_t out) {
  return {.in_features = in, .out_features = out, .init = kInit};
}

cleave::EmbeddingOptions table(int64_t rows, int64_t width) {
  return {.num_embeddings = rows, .embedding_dim = width, .init = kInit};
}

nxd::ColumnParallelLinearOptions column(const BertConfig& config) {
  return {.gather_output = false, .dtype = config.dtype, .init_method = kInit};
}

}  // namespace

ParallelSelfAttention::ParallelSelfAttention(const BertConfig& config)
    : query_(config.hidden_size, config.hidden_size, column(config)),
      key_(config.hidden_size, config.hidden_size, column(config)),
      value_(config.hidden_size, config.hidden_size, column(config)) {
  // Each rank has a share of the heads.
  num_attention_heads_ = nxd::divide(config.num_attention_heads, nxd::get_tensor_parallel_size());
  add("query", query_);
  add("key", key_);
  add("value", value_);
}

Tensor ParallelSelfAttention::operator()(const Tensor& hidden, const Tensor& mask) {
  const auto heads_first = [&](const Tensor& t) {  // [B, T, H*K] -> [B, H, T, K]
    return t.view({t.size(0), t.size(1), num_attention_heads_, -1}).transpose(1, 2);
  };
  const Tensor context = at::scaled_dot_product_attention(
      heads_first(query_(hidden)), heads_first(key_(hidden)), heads_first(value_(hidden)), mask);
  return context.transpose(1, 2).flatten(2);
}

ParallelSelfOutput::ParallelSelfOutput(const BertConfig& config)
    : dense_(config.hidden_size, config.hidden_size,
             {.input_is_parallel = true, .dtype = config.dtype, .init_method = kInit}),
      norm_(config.hidden_size, kEps),
      dropout_(config.hidden_dropout_prob) {
  add("dense", dense_);
  add("LayerNorm", norm_);
  add("dropout", dropout_);
}

Tensor ParallelSelfOutput::operator()(const Tensor& context, const Tensor& input,
                                      const Context& c) {
  return nxd::call(norm_, nxd::call(dropout_, dense_(context), c) + input);
}

BertLayer::BertLayer(const BertConfig& config)
    : attention_(config),
      attention_output_(config),
      intermediate_(whole(config.hidden_size, config.intermediate_size)),
      output_(whole(config.intermediate_size, config.hidden_size)),
      norm_(config.hidden_size, kEps),
      dropout_(config.hidden_dropout_prob) {
  add("attention.self", attention_);
  add("attention.output", attention_output_);
  add("intermediate.dense", intermediate_);
  add("output.dense", output_);
  add("output.LayerNorm", norm_);
  add("output.dropout", dropout_);
}

Tensor BertLayer::operator()(const Tensor& hidden, const Tensor& mask, const Context& c) {
  const Tensor attended = attention_output_(attention_(hidden, mask), hidden, c);
  const Tensor wide = at::gelu(nxd::call(intermediate_, attended));
  return nxd::call(norm_, nxd::call(dropout_, nxd::call(output_, wide), c) + attended);
}

BertForPreTraining::BertForPreTraining(const BertConfig& config)
    : config_(config),
      words_(table(config.vocab_size, config.hidden_size)),
      positions_(table(config.max_position_embeddings, config.hidden_size)),
      types_(table(2, config.hidden_size)),
      norm_(config.hidden_size, kEps),
      dropout_(config.hidden_dropout_prob),
      pooler_(whole(config.hidden_size, config.hidden_size)),
      transform_(whole(config.hidden_size, config.hidden_size)),
      transform_norm_(config.hidden_size, kEps),
      decoder_(whole(config.hidden_size, config.vocab_size)),
      decoder_bias_(decoder_.bias()),
      seq_relationship_(whole(config.hidden_size, 2)) {
  add("bert.embeddings.word_embeddings", words_);
  add("bert.embeddings.position_embeddings", positions_);
  add("bert.embeddings.token_type_embeddings", types_);
  add("bert.embeddings.LayerNorm", norm_);
  add("bert.embeddings.dropout", dropout_);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<BertLayer>(config));
    add(cleave::str("bert.encoder.layer.", i), *layers_.back());
  }
  add("bert.pooler.dense", pooler_);
  add("cls.predictions.bias", decoder_bias_);
  add("cls.predictions.transform.dense", transform_);
  add("cls.predictions.transform.LayerNorm", transform_norm_);
  add("cls.predictions.decoder", decoder_);
  add("cls.seq_relationship", seq_relationship_);
  decoder_.tie_weight(words_.weight());
}

Scores BertForPreTraining::operator()(const Batch& batch, const Context& c) {
  const Tensor positions = at::arange(batch.ids.size(1)).expand_as(batch.ids);
  Tensor hidden = nxd::call(words_, batch.ids) + nxd::call(positions_, positions) +
                  nxd::call(types_, batch.token_types);
  hidden = nxd::call(dropout_, nxd::call(norm_, hidden), c);
  const Tensor mask = batch.attention_mask.unsqueeze(1).unsqueeze(1);
  for (const auto& layer : layers_) hidden = (*layer)(hidden, mask, c);

  const Tensor pooled = at::tanh(nxd::call(pooler_, hidden.select(1, 0)));
  // Logits are needed only at the masked positions, about a tenth of the sequence.
  const Tensor index = batch.masked_positions.unsqueeze(-1).expand({-1, -1, hidden.size(-1)});
  const Tensor masked = at::gelu(nxd::call(transform_, hidden.gather(1, index)));
  return {.words = nxd::call(decoder_, nxd::call(transform_norm_, masked)),
          .next = nxd::call(seq_relationship_, pooled)};
}

}  // namespace bert_pretraining
