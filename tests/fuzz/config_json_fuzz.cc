// Random bytes as a config.json of every model family and as Meta's params.json: a refusal is
// Error(kFormat); every number of an accepted file is in its range.
#include <cmath>
#include <cstdint>

#include "cleave/base/error.h"
#include "cleave/model/bert/config.h"
#include "cleave/model/families.h"
#include "cleave/model/gpt2/gpt2.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::Json;
using cleave::fuzz::require;

bool is_in(int64_t value, int64_t high) {
  return value >= 1 && value <= high;
}

void check_facts(const cleave::ModelFacts& f) {
  require(is_in(f.vocab_size, INT32_MAX) && is_in(f.max_positions, int64_t{1} << 30));
  require(is_in(f.num_layers, 4096) && is_in(f.hidden, 1 << 20));
  require(is_in(f.num_heads, 1 << 16) && is_in(f.num_kv_heads, f.num_heads));
  require(f.num_heads % f.num_kv_heads == 0);
  for (const int64_t id : f.eos_ids) require(id >= -1 && id < f.vocab_size);
  require(!f.bos_id || (*f.bos_id >= -1 && *f.bos_id < f.vocab_size));
  require(!f.pad_id || (*f.pad_id >= -1 && *f.pad_id < f.vocab_size));
}

bool is_number(double value, double low, double high) {
  return std::isfinite(value) && value >= low && value <= high;
}

void check_decoder(const cleave::DecoderConfig& c) {
  check_facts(c.facts);
  require(is_in(c.intermediate, 1 << 20) && is_in(c.head_dim, 1 << 16) && c.head_dim % 2 == 0);
  require(is_number(c.norm_eps, 0, 1) && is_number(c.init_range, 0, 1e3));
  require(is_number(c.rotary.theta, 1, 1e30) && is_number(c.rotary.factor, 1e-6, 1e6));
  require(c.rotary.low_freq_factor < c.rotary.high_freq_factor);
  require(is_number(c.rotary.magnitude, 1e-6, 1e6) && is_in(c.rotary.head_dim, c.head_dim));
  require(c.rotary.head_dim % 2 == 0 &&
          c.rotary.short_factors.size() == c.rotary.long_factors.size());
  require(static_cast<int64_t>(c.layers.size()) == c.facts.num_layers);
  require(is_number(c.score_divisor, 0, 1e6) && is_number(c.score_cap, 0, 1e6));
  require(is_number(c.embedding_scale, 1, 1 << 10) && is_number(c.logit_cap, 0, 1e6));
  for (const auto& layer : c.layers) {
    require(layer.window >= 0);
    require(!layer.rotary || is_number(layer.rotary->theta, 1, 1e30));
    if (!layer.has_experts) continue;
    const cleave::ExpertsConfig& e = c.experts;
    require(is_in(e.num_experts, 1024) && is_in(e.top_k, e.num_experts));
    require(e.intermediate >= 1 && is_in(e.num_experts * e.intermediate, 1 << 20));
  }
}

void check_gpt2(const Json& json) {
  const auto c = cleave::Gpt2Config::from_json(json);
  check_facts(c.facts);
  require(is_in(c.intermediate, 1 << 20) && c.facts.hidden % c.facts.num_heads == 0);
  for (const double p : {c.embd_pdrop, c.attn_pdrop, c.resid_pdrop}) require(p >= 0 && p < 1);
}

void check_bert(const Json& json) {
  const auto c = cleave::BertConfig::from_json(json);
  check_facts(c.facts);
  require(is_in(c.intermediate, 1 << 20) && is_in(c.num_token_types, 1 << 20));
  require(c.head != cleave::BertHead::kClassifier || !c.facts.labels.empty());
  for (const double p : {c.hidden_dropout, c.attention_dropout, c.classifier_dropout}) {
    require(p >= 0 && p < 1);
  }
}

template <class Read>
void check(const Read& read, const Json& json) {
  try {
    read(json);
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const Json json =
        Json::parse(cleave::fuzz::text_of(data, size), "config.json", cleave::kConfigLimits);
    for (const auto read :
         {&cleave::llama_config, &cleave::qwen2_config, &cleave::qwen3_config,
          &cleave::mistral_config, &cleave::smollm3_config, &cleave::olmo2_config,
          &cleave::olmo3_config, &cleave::phi3_config, &cleave::gemma2_config,
          &cleave::gemma3_config, &cleave::mixtral_config, &cleave::qwen3_moe_config}) {
      check([&](const Json& config) { check_decoder(read(config)); }, json);
    }
    check(check_gpt2, json);
    check(check_bert, json);
    check(
        [](const Json& meta) {
          check_decoder(cleave::llama_config(cleave::llama_config_from_meta(meta, 32000)));
        },
        json);
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
  }
  return 0;
}
