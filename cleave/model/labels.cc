#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "cleave/model/bert/config.h"
#include "cleave/model/facts.h"
#include "cleave/model/label_task.h"

namespace cleave::inline model {
namespace {

constexpr int64_t kMostLabels = int64_t{1} << 20;

/// The number that a key of id2label spells.
size_t number_of(const Json& names, size_t entry) {
  const std::string& key = names.key(entry);
  const size_t count = names.size();
  size_t number = count;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
  if (error != std::errc() || end != key.data() + key.size() || number >= count) {
    names.at(entry).fail(str("its key must be a number from 0 to ", count - 1));
  }
  return number;
}

/// The class in transformers for a classifier with the same layers; none for a family without one.
std::optional<std::string> classifier_architecture(const Json& config) {
  constexpr std::string_view kClassifier = "ForSequenceClassification";
  const std::string type = config.string_or("model_type", "");
  if (const BertType* bert = find_bert_type(type)) return str(bert->architecture, kClassifier);
  if (type == "gpt2") return str("GPT2", kClassifier);
  if (type == "gemma3_text") return str("Gemma3Text", kClassifier);
  if (!config.has("architectures") || config.at("architectures").size() == 0) return std::nullopt;
  const std::string& name = config.at("architectures").at(size_t{0}).as_string();
  constexpr std::string_view kDecoder = "ForCausalLM";
  if (!name.ends_with(kDecoder)) return std::nullopt;
  return str(name.substr(0, name.size() - kDecoder.size()), kClassifier);
}

}  // namespace

std::vector<std::string> read_labels(const Json& json) {
  if (!json.has("id2label")) {
    std::vector<std::string> names;
    const int64_t count = json.int_or("num_labels", 2, 1, kMostLabels);
    for (int64_t i = 0; i < count; ++i) names.push_back(str("LABEL_", i));
    return names;
  }
  const Json id2label = json.at("id2label");
  if (!id2label.is(Json::Type::kObject) || id2label.size() == 0) {
    id2label.fail("expected an object of numbers to names");
  }
  std::vector<std::string> names(id2label.size());
  std::vector<bool> is_named(id2label.size());
  for (size_t i = 0; i < id2label.size(); ++i) {
    const size_t number = number_of(id2label, i);
    if (is_named[number]) id2label.at(i).fail(str("class ", number, " has a name already"));
    is_named[number] = true;
    names[number] = id2label.at(i).as_string();
  }
  return names;
}

std::string read_decoder_task(const Json& json, ModelFacts& facts) {
  if (!json.has("architectures") || json.at("architectures").size() == 0) return "lm";
  const Json architecture = json.at("architectures").at(size_t{0});
  const std::string& name = architecture.as_string();
  if (name.ends_with("ForSequenceClassification")) {
    facts.labels = read_labels(json);
    return label_task(json, facts.labels.size());
  }
  for (const char* other : {"ForTokenClassification", "ForQuestionAnswering"}) {
    if (name.ends_with(other)) {
      architecture.fail(
          "the head is not supported; expected ...ForCausalLM or "
          "...ForSequenceClassification");
    }
  }
  return "lm";
}

Json classifier_config(const Json& config, const std::vector<std::string>& labels) {
  auto json = nlohmann::ordered_json::parse(config.dump());
  if (const auto name = classifier_architecture(config)) json["architectures"] = {*name};
  auto id2label = nlohmann::ordered_json::object();
  auto label2id = nlohmann::ordered_json::object();
  for (size_t i = 0; i < labels.size(); ++i) {
    id2label[std::to_string(i)] = labels[i];
    label2id[labels[i]] = i;
  }
  json.erase("num_labels");
  json.erase("problem_type");  // that of another head
  json["id2label"] = id2label;
  json["label2id"] = label2id;
  return Json::parse(json.dump(), "config.json");
}

Json with_key(const Json& config, std::string_view key, std::string_view value) {
  auto json = nlohmann::ordered_json::parse(config.dump());
  json[std::string(key)] = value;
  return Json::parse(json.dump(), "config.json");
}

}  // namespace cleave::inline model
