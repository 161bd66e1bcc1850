#include "cleave/model/gguf/added_tokens.h"

#include <algorithm>
#include <vector>

#include "cleave/base/log.h"

namespace cleave::inline model {
namespace {

constexpr std::string_view kPhi3Names[] = {"phi-3", "phi3"};
/// Tokens without rstrip under llama.cpp's rule.
constexpr std::string_view kPlainTokens[] = {"<unk>", "<s>", "<|endoftext|>"};
/// llama.cpp does not open a file under the rule that lacks one of these.
constexpr std::string_view kNeededTokens[] = {"</s>", "<unk>", "<s>", "<|endoftext|>"};

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

/// The added tokens of a tokenizer.json.
std::vector<Json> added_tokens_of(const Json& tokenizer_json) {
  std::vector<Json> tokens;
  if (!tokenizer_json.has("added_tokens")) return tokens;
  const Json list = tokenizer_json.at("added_tokens");
  for (size_t i = 0; i < list.size(); ++i) tokens.push_back(list.at(i));
  return tokens;
}

bool is_plain(const Json& token) {
  return !token.bool_or("lstrip", false) && !token.bool_or("rstrip", false) &&
         !token.bool_or("single_word", false);
}

/// Whether the rule gives all added tokens the attributes that they have, and some of them any.
bool fits_phi3(const std::vector<Json>& added, const Tokenizer& tokenizer) {
  const bool has_needed =
      std::all_of(std::begin(kNeededTokens), std::end(kNeededTokens),
                  [&](std::string_view token) { return tokenizer.id_of(token).has_value(); });
  const bool has_any = !std::all_of(added.begin(), added.end(), is_plain);
  return has_needed && has_any && std::all_of(added.begin(), added.end(), [](const Json& token) {
           return !token.bool_or("lstrip", false) && !token.bool_or("single_word", false) &&
                  token.bool_or("rstrip", false) ==
                      has_phi3_rstrip(token.at("content").as_string());
         });
}

/// Writes "phi 3" in place of the names to which the rule applies.
std::string without_phi3(std::string name) {
  for (const std::string_view wanted : kPhi3Names) {
    size_t at = 0;
    while ((at = lower_case(name).find(wanted, at)) != std::string::npos) {
      const std::string_view text = name;
      name = str(text.substr(0, at + 3), ' ', text.substr(at + wanted.size() - 1));
    }
  }
  return name;
}

}  // namespace

bool has_phi3_name(std::string_view name) {
  const std::string lower = lower_case(name);
  return std::any_of(std::begin(kPhi3Names), std::end(kPhi3Names), [&](std::string_view wanted) {
    return lower.find(wanted) != std::string::npos;
  });
}

bool has_phi3_rstrip(std::string_view token) {
  return std::find(std::begin(kPlainTokens), std::end(kPlainTokens), token) ==
         std::end(kPlainTokens);
}

std::string gguf_model_name(const std::string& name, const GgufTokenizer& tokenizer) {
  const auto file = std::find_if(tokenizer.files.begin(), tokenizer.files.end(),
                                 [](const NamedFile& f) { return f.name == "tokenizer.json"; });
  if (tokenizer.tokenizer == nullptr || file == tokenizer.files.end()) return name;
  const Json json = Json::parse(file->text, "tokenizer.json");
  if (!fits_phi3(added_tokens_of(json), *tokenizer.tokenizer)) return without_phi3(name);
  return has_phi3_name(name) ? name : name + (name.empty() ? "phi-3" : " phi-3");
}

void warn_of_lost_attributes(const GgufTokenizer& tokenizer, const Json& tokenizer_json) {
  const std::vector<Json> added = added_tokens_of(tokenizer_json);
  const auto first =
      std::find_if(added.begin(), added.end(), [](const Json& token) { return !is_plain(token); });
  if (first == added.end() || fits_phi3(added, *tokenizer.tokenizer)) return;
  const auto others = std::count_if(std::next(first), added.end(),
                                    [](const Json& token) { return !is_plain(token); });
  log_warning("GGUF cannot store lstrip, rstrip and single_word of added tokens, which '",
              first->at("content").as_string(), "'",
              others > 0 ? str(" and ", others, others == 1 ? " other have" : " others have")
                         : std::string(" has"),
              "; texts with white space or letters beside them get other ids");
}

}  // namespace cleave::inline model
