#include "cleave/tokenizer/pipeline.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/text/json.h"

// Oracle: the `tokenizers` library of Hugging Face, version 0.23.3, on small vocabularies, through
// tests/golden/tokenizer/pipelines.json.
namespace cleave {
namespace {

using Ids = std::vector<int64_t>;

Ids ids_of(const Json& list) {
  Ids ids;
  for (size_t i = 0; i < list.size(); ++i) ids.push_back(list.at(i).as_int());
  return ids;
}

/// The tokenizer.json of a golden entry, with its vocabulary put in.
std::string whole_text(const Json& golden, const Json& entry) {
  const Json model = entry.at("tokenizer").at("model");
  const auto number = static_cast<size_t>(model.at("vocab").as_int(0));
  const Json vocabulary = golden.at("vocabularies").at(number);
  std::string text = entry.at("tokenizer").dump();
  const std::string from = str("\"vocab\":", number);
  std::string to = "\"vocab\":" + vocabulary.at("vocab").dump();
  if (vocabulary.has("merges")) to += ",\"merges\":" + vocabulary.at("merges").dump();
  return text.replace(text.find(from), from.size(), to);
}

TEST(Pipeline, EveryKindOfStep_GivesTheReferencesIdsAndText) {
  const Json golden =
      Json::parse_file(std::string(CLEAVE_SOURCE_DIR) + "/tests/golden/tokenizer/pipelines.json");
  const Json entries = golden.at("pipelines");
  ASSERT_EQ(entries.size(), 82U);
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string& name = entries.at(i).at("name").as_string();
    const auto tokenizer =
        make_pipeline(read_pipeline(Json::parse(whole_text(golden, entries.at(i)), name)));
    const Json cases = entries.at(i).at("cases");
    for (size_t k = 0; k < cases.size(); ++k) {
      const Json one = cases.at(k);
      const auto number = static_cast<size_t>(one.at("text").as_int(0));
      const std::string& text = golden.at("texts").at(number).as_string();
      const Ids ids = ids_of(one.at("ids"));
      const Ids special = one.has("ids_special") ? ids_of(one.at("ids_special")) : ids;
      const std::string& decoded = one.at("decoded").as_string();
      EXPECT_EQ(tokenizer->encode(text, {.add_special = false}), ids) << name << ": " << text;
      EXPECT_EQ(tokenizer->encode(text), special) << name << ": " << text;
      EXPECT_EQ(tokenizer->decode(ids), decoded) << name << ": " << text;
      EXPECT_EQ(tokenizer->decode(special, true), one.string_or("decoded_plain", decoded))
          << name << ": " << text;
    }
  }
}

}  // namespace
}  // namespace cleave
