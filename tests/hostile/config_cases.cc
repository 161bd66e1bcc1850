// Invalid config.json and Meta params.json files are refused with key, value, expected value and
// byte, before memory is allocated.
#include <string>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/base/str.h"
#include "cleave/model/bert/config.h"
#include "cleave/model/families.h"
#include "cleave/model/gpt2/gpt2.h"
#include "tests/hostile/hostile.h"

namespace cleave::test {
namespace {

const std::string kLlama = R"({"model_type": "llama", "vocab_size": 320, "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-06,
  "rope_theta": 10000.0, "initializer_range": 0.02, "hidden_act": "silu", "attention_bias": false,
  "tie_word_embeddings": false, "eos_token_id": [1, 2], "bos_token_id": 0, "rope_scaling":
  {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
   "original_max_position_embeddings": 64}})";
const std::string kGpt2 = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
  "vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": null,
  "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "initializer_range": 0.02,
  "embd_pdrop": 0.1, "add_cross_attention": false})";
const std::string kBert = R"({"model_type": "bert", "architectures":
  ["BertForSequenceClassification"], "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 128,
  "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1, "hidden_act": "gelu",
  "is_decoder": false, "id2label": {"0": "no", "1": "yes"}, "pad_token_id": 0})";
const std::string kMeta = R"({"model_type": "meta", "dim": 64, "n_layers": 2, "n_heads": 4,
  "n_kv_heads": 2, "multiple_of": 32, "ffn_dim_multiplier": 1.5, "norm_eps": 1e-05,
  "rope_theta": 10000.0, "vocab_size": -1})";

/// `config` with `value` instead of `old` for `key`.
std::string with(const std::string& config, const std::string& key, const std::string& old,
                 const std::string& value) {
  return changed(config, "\"" + key + "\": " + old, "\"" + key + "\": " + value);
}

/// Values that are not integers in a key's range, for every key that needs one.
std::vector<HostileCase> wrong_integers() {
  struct Key {
    const std::string* config;
    std::string name, old;
  };
  const std::vector<Key> keys{{&kLlama, "vocab_size", "320"},
                              {&kLlama, "hidden_size", "64"},
                              {&kLlama, "num_hidden_layers", "2"},
                              {&kLlama, "num_attention_heads", "4"},
                              {&kLlama, "intermediate_size", "96"},
                              {&kGpt2, "n_embd", "64"},
                              {&kGpt2, "n_layer", "2"},
                              {&kBert, "max_position_embeddings", "128"}};
  std::vector<HostileCase> cases;
  for (const Key& key : keys) {
    for (const std::string value : {"0", "-1", "2147483648", "9223372036854775808", "1e400", "12.5",
                                    "\"8\"", "[8]", "true"}) {
      cases.push_back({str(key.name, " ", value), with(*key.config, key.name, key.old, value),
                       str("\"", key.name, "\" is ", value, "; expected an integer in [1, ")});
    }
    cases.push_back({key.name + " NaN", with(*key.config, key.name, key.old, "NaN"),
                     "found 'N', expected a value"});
    if (key.name == "max_position_embeddings") continue;  // it has a default
    cases.push_back({key.name + " null", with(*key.config, key.name, key.old, "null"),
                     str("\"", key.name, "\" is null; expected an integer")});
    cases.push_back({key.name + " missing", changed(*key.config, key.name, "x_" + key.name),
                     str("\"", key.name, "\" is missing")});
  }
  return cases;
}

std::vector<HostileCase> wrong_numbers() {
  const auto llama = [](const std::string& key, const std::string& old, const std::string& value) {
    return with(kLlama, key, old, value);
  };
  return {
      {"a norm's epsilon below 0", llama("rms_norm_eps", "1e-06", "-1e-06"), "in [0, 1]"},
      {"a norm's epsilon of 1e400", llama("rms_norm_eps", "1e-06", "1e400"), "\"rms_norm_eps\""},
      {"a norm's epsilon as a string", llama("rms_norm_eps", "1e-06", "\"small\""), "\"small\""},
      {"an initial range below 0", llama("initializer_range", "0.02", "-0.02"), "in [0, 1000]"},
      {"a rotary base of 0", llama("rope_theta", "10000.0", "0"), "\"rope_theta\" is 0; expected"},
      {"a rotary base below 0", llama("rope_theta", "10000.0", "-1"), "\"rope_theta\" is -1"},
      {"a rotary base of 1e400", llama("rope_theta", "10000.0", "1e400"),
       "\"rope_theta\" is 1e400"},
      {"a rotary factor of 0", llama("factor", "8.0", "0"), "\"rope_scaling.factor\" is 0"},
      {"a rotary factor of null", llama("factor", "8.0", "null"), "rope_scaling.factor"},
      {"equal rotary frequencies", llama("high_freq_factor", "4.0", "1.0"),
       "expected a number above low_freq_factor"},
      {"a rotary frequency of 0", llama("low_freq_factor", "1.0", "0"), "low_freq_factor"},
      {"unknown rotary scaling", llama("rope_type", "\"llama3\"", "\"mrope\""),
       "rope_type 'mrope' is not supported"},
      {"rotary scaling that is a number",
       changed(kLlama, "\"rope_scaling\":\n  {\"rope_type\"",
               "\"rope_scaling\": 7, \"x\": {\"rope_type\""),
       "\"rope_scaling\" is 7"},
      {"0 positions before scaling", llama("original_max_position_embeddings", "64", "0"),
       "original_max_position_embeddings"},
      {"dropout of 1", with(kGpt2, "embd_pdrop", "0.1", "1"), "expected a probability in [0, 1)"},
      {"dropout below 0", with(kGpt2, "embd_pdrop", "0.1", "-0.1"), "\"embd_pdrop\" is -0.1"},
      {"dropout of true", with(kBert, "hidden_dropout_prob", "0.1", "true"), "expected a number"},
      {"dropout of 1e400", with(kBert, "hidden_dropout_prob", "0.1", "1e400"), "64-bit float"},
      {"an epsilon above 1", with(kBert, "layer_norm_eps", "1e-12", "2"), "in [0, 1]"},
      {"a multiplier of 1e300", with(kMeta, "ffn_dim_multiplier", "1.5", "1e300"),
       "\"ffn_dim_multiplier\" is 1e300"},
      {"a multiplier below 0", with(kMeta, "ffn_dim_multiplier", "1.5", "-1"),
       "ffn_dim_multiplier"},
      {"a vocabulary of -2", with(kMeta, "vocab_size", "-1", "-2"), "\"vocab_size\" is -2"},
  };
}

std::vector<HostileCase> contradictions() {
  return {
      {"more key heads than query heads", with(kLlama, "num_key_value_heads", "2", "8"),
       "\"num_key_value_heads\" is 8; expected an integer in [1, 4]"},
      {"key heads that do not divide the heads", with(kLlama, "num_key_value_heads", "2", "3"),
       "it must divide num_attention_heads=4"},
      {"a head of a million dims by division",
       changed(with(kLlama, "hidden_size", "64", "1048576"), "\"head_dim\": 16,", ""),
       "at most 65536 times it"},
      {"an odd head", with(kLlama, "head_dim", "16", "15"), "must be even"},
      {"heads that are together a million times too wide",
       with(with(kLlama, "num_attention_heads", "4", "65536"), "head_dim", "16", "65536"),
       "\"head_dim\" is 65536; 65536 heads of this size are wider than 1048576"},
      {"positions for a product past 63 bits",
       with(kBert, "max_position_embeddings", "128", "1073741824"), "in [1, 268435456]"},
      {"a head of a million dims", with(kLlama, "head_dim", "16", "1048576"), "\"head_dim\""},
      {"heads that do not divide the width", with(kGpt2, "n_head", "4", "7"),
       "it must be a multiple of n_head=7"},
      {"more heads than dims", with(kBert, "num_attention_heads", "4", "128"),
       "it must be a multiple of num_attention_heads=128"},
      {"Meta's heads that do not divide", with(kMeta, "n_heads", "4", "7"),
       "it must be a multiple of n_heads=7"},
  };
}

std::vector<HostileCase> wrong_choices() {
  return {
      {"a pad id outside the vocabulary", with(kBert, "pad_token_id", "0", "1000000"),
       "\"pad_token_id\" is 1000000; expected an integer in [-1, "},
      {"an id in a list that no vocabulary can have",
       with(kLlama, "eos_token_id", "[1, 2]", "[1, 2147483648]"),
       "\"eos_token_id[1]\" is 2147483648"},
      {"ids in a list in a list", with(kLlama, "eos_token_id", "[1, 2]", "[[1]]"),
       "eos_token_id[0]"},
      {"an id as a string", with(kBert, "pad_token_id", "0", "\"[PAD]\""), "\"pad_token_id\""},
      {"an unknown activation", with(kLlama, "hidden_act", "\"silu\"", "\"tanhh\""),
       "\"hidden_act\" is \"tanhh\""},
      {"an unknown activation under its own key",
       with(kGpt2, "activation_function", "\"gelu_new\"", "\"foo\""),
       "\"activation_function\" is \"foo\"; activation 'foo' is unknown"},
      {"an activation that is a number", with(kGpt2, "activation_function", "\"gelu_new\"", "3"),
       "\"activation_function\" is 3; expected a string"},
      {"code as an activation", with(kBert, "hidden_act", "\"gelu\"", "\"__import__('os')\""),
       "\"hidden_act\""},
      {"a bias that is a number", with(kLlama, "attention_bias", "false", "1"),
       "expected true or false"},
      {"a tie that is a string", with(kLlama, "tie_word_embeddings", "false", "\"false\""),
       "expected true or false"},
      {"another head",
       with(kGpt2, "architectures", "[\"GPT2LMHeadModel\"]", "[\"GPT2DoubleHeadsModel\"]"),
       "expected GPT2LMHeadModel"},
      {"an architecture that is a number",
       with(kGpt2, "architectures", "[\"GPT2LMHeadModel\"]", "[1]"), "expected a string"},
      {"architectures that are a string",
       with(kGpt2, "architectures", "[\"GPT2LMHeadModel\"]", "\"GPT2LMHeadModel\""),
       "expected an array"},
      {"two architectures", changed(kBert, "[\"Bert", "[\"BertModel\", \"Bert"),
       "expected the name of one architecture"},
      {"cross attention", with(kGpt2, "add_cross_attention", "false", "true"), "is not supported"},
      {"a decoder", with(kBert, "is_decoder", "false", "true"), "only encoders"},
      {"a class without a name", changed(kBert, "\"1\": \"yes\"", "\"2\": \"yes\""),
       "its key must be a number from 0 to 1"},
      {"a class with two names", changed(kBert, "\"1\": \"yes\"", "\"00\": \"yes\""),
       "class 0 has a name already"},
      {"a class below 0", changed(kBert, "\"1\": \"yes\"", "\"-1\": \"yes\""),
       "its key must be a number"},
      {"a class that is a number", changed(kBert, "\"1\": \"yes\"", "\"1\": 1"),
       "expected a string"},
      {"no classes", changed(kBert, "{\"0\": \"no\", \"1\": \"yes\"}", "{}"), "expected an object"},
  };
}

std::vector<HostileCase> wrong_texts() {
  return {
      {"no bytes", "", "found the end of the text"},
      {"a byte order mark", "\xEF\xBB\xBF" + kLlama, "byte order mark"},
      {"UTF-16", std::string("\xFF\xFE{\0}\0", 6), "byte value 255"},
      {"bad UTF-8", changed(kLlama, "\"silu\"", "\"si\xC3\x28u\""), "not valid UTF-8"},
      {"a NUL inside", changed(kLlama, "\"silu\"", "\"si" + std::string(1, '\0') + "lu\""),
       "control character 0"},
      {"a trailing NUL", kLlama + std::string(1, '\0'), "nothing after the end"},
      {"two documents", kLlama + kLlama, "nothing after the end"},
      {"a list", "[" + kLlama + "]", "expected an object"},
      {"a string", "\"llama\"", "expected an object"},
      {"null", "null", "expected an object"},
      {"a key twice",
       changed(kLlama, "\"hidden_size\": 64", "\"hidden_size\": 64, \"hidden_size\": 8"),
       "the key \"hidden_size\" occurs twice"},
      {"a key twice, escaped",
       changed(kLlama, "\"hidden_size\": 64", R"("hidden_size": 64, "hidden\u005fsize": 8)"),
       "the key \"hidden_size\" occurs twice"},
      {"a key twice in an unused object",
       changed(kLlama, "{\"model", R"({"x":{"y":1,"y":2},"model)"), "the key \"y\" occurs twice"},
      {"a comment", "// Llama\n" + kLlama, "found a comment, which JSON does not have"},
      {"a trailing comma", changed(kLlama, "\"head_dim\": 16,", "\"head_dim\": 16,,"), "found ','"},
      {"single quotes", "{'model_type': 'llama'}", "expected a key in quotes"},
      {"Infinity", with(kLlama, "rope_theta", "10000.0", "Infinity"), "expected a value"},
      {"-NaN", with(kLlama, "rope_theta", "10000.0", "-NaN"), "expected a digit"},
      {"a number that begins with 0", with(kLlama, "hidden_size", "64", "064"), "begins with 0"},
      {"a number in hexadecimal", with(kLlama, "hidden_size", "64", "0x40"), "found 'x'"},
      {"half a surrogate pair", with(kLlama, "hidden_act", "\"silu\"", R"("\ud800")"), "surrogate"},
      {"half a file", kLlama.substr(0, kLlama.size() / 2), "has no end"},
      {"100,000 open brackets", "{\"x\":" + repeated("[", 100'000), "nested deeper than 64"},
      {"100,000 open braces", repeated("{\"x\":", 100'000), "nested deeper than 64"},
      {"300,000 values", "", "more than 262144 values",
       [] { return "{\"x\":[" + repeated("0,", 300'000) + "0]}"; }},
      {"200 MB", "", "expected at most 4194304",
       [] { return kLlama + std::string(200'000'000, ' '); }},
  };
}

std::vector<HostileCase> accepted() {
  return {
      {"Llama", kLlama, ""},
      {"GPT-2", kGpt2, ""},
      {"BERT", kBert, ""},
      {"Meta's", kMeta, ""},
      {"unknown keys", changed(kLlama, "{\"model", R"({"x":[1e400,{"y":null}],"model)"), ""},
      {"ids of -1", with(kLlama, "bos_token_id", "0", "-1"), ""},
      {"an id outside the vocabulary", with(kLlama, "bos_token_id", "0", "320"), ""},
      {"null where there is a default", with(kLlama, "rms_norm_eps", "1e-06", "null"), ""},
      {"spaces and line ends", "\n\t " + kGpt2 + "\r\n\n", ""},
      {"the largest sizes", with(kLlama, "hidden_size", "64", "1048576"), ""},
      {"a string of 3 MB", "", "",
       [] {
         return changed(kLlama, "{\"model",
                        "{\"x\":\"" + std::string(3'000'000, 'x') + "\",\"model");
       }},
  };
}

void read_config(const Json& json) {
  const std::string family = json.at("model_type").as_string();
  if (family == "llama") (void)llama_config(json);
  if (family == "gpt2") (void)Gpt2Config::from_json(json);
  if (family == "bert") (void)BertConfig::from_json(json);
  if (family == "meta") (void)llama_config(llama_config_from_meta(json, 320));
}

}  // namespace

HostileSet config_set() {
  HostileSet set{.kind = "config_json",
                 .file_name = "config.json",
                 .least = 120,
                 .seed = kLlama,
                 .cases = accepted()};
  for (const auto& cases :
       {wrong_integers(), wrong_numbers(), contradictions(), wrong_choices(), wrong_texts()}) {
    set.cases.insert(set.cases.end(), cases.begin(), cases.end());
  }
  set.read = [](const std::filesystem::path& folder) {
    read_config(Json::parse_file((folder / "config.json").string(), kConfigLimits));
  };
  return set;
}

}  // namespace cleave::test
