// The normalizers of tokenizer.json.
#include <map>
#include <utility>
#include <vector>

#include "cleave/text/utf8.h"
#include "cleave/tokenizer/regex.h"
#include "cleave/tokenizer/steps.h"
#include "cleave/tokenizer/unicode.h"

namespace cleave::inline tokenizer {
namespace {

class NormalizerChain final : public Normalizer {
 public:
  explicit NormalizerChain(std::vector<std::unique_ptr<Normalizer>> steps)
      : steps_(std::move(steps)) {}
  [[nodiscard]] std::string normalize(std::string text) const override {
    for (const auto& step : steps_) text = step->normalize(std::move(text));
    return text;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  [[nodiscard]] std::string normalize(std::string text) const override {
    return text.empty() ? text : prefix_ + text;
  }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  explicit Replace(Replacement replacement) : replacement_(std::move(replacement)) {}
  [[nodiscard]] std::string normalize(std::string text) const override {
    return replacement_.apply(text);
  }

 private:
  Replacement replacement_;
};

class NormalFormStep final : public Normalizer {
 public:
  explicit NormalFormStep(NormalForm form) : form_(form) {}
  [[nodiscard]] std::string normalize(std::string text) const override {
    return to_normal_form(text, form_);
  }

 private:
  NormalForm form_;
};

/// `text` with `change(out, character)` called for each character.
template <class Change>
std::string map_characters(std::string_view text, const Change& change) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = next_code_point(text, at);
    change(out, point.value);
    at += point.bytes;
  }
  return out;
}

class Lowercase final : public Normalizer {
 public:
  [[nodiscard]] std::string normalize(std::string text) const override {
    return map_characters(text, append_lower);
  }
};

class StripAccents final : public Normalizer {
 public:
  [[nodiscard]] std::string normalize(std::string text) const override {
    return map_characters(text, [](std::string& out, char32_t c) {
      if (!is_mark(c)) append_utf8(out, c);
    });
  }
};

class Strip final : public Normalizer {
 public:
  struct Ends {
    bool left = true;
    bool right = true;
  };
  explicit Strip(const Ends& ends) : ends_(ends) {}
  [[nodiscard]] std::string normalize(std::string text) const override {
    size_t begin = 0;
    size_t end = 0;  // after the last character that is not white space
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = next_code_point(text, at);
      const bool space = is_white_space(point.value);
      if (space && begin == at) begin += point.bytes;
      at += point.bytes;
      if (!space) end = at;
    }
    if (!ends_.left) begin = 0;
    if (!ends_.right) end = text.size();
    return begin < end ? text.substr(begin, end - begin) : "";
  }

 private:
  Ends ends_;
};

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const BertNormalizerOptions& options) : options_(options) {}
  [[nodiscard]] std::string normalize(std::string text) const override {
    if (options_.clean_text || options_.chinese_chars) {
      text = map_characters(text, [this](std::string& out, char32_t c) { clean(out, c); });
    }
    if (options_.strip_accents) {
      text =
          map_characters(to_normal_form(text, NormalForm::kNfd), [](std::string& out, char32_t c) {
            if (!is_accent(c)) append_utf8(out, c);
          });
    }
    return options_.lowercase ? map_characters(text, append_lower) : text;
  }

 private:
  void clean(std::string& out, char32_t c) const {
    if (options_.clean_text) {
      const bool space = c == '\t' || c == '\n' || c == '\r' || is_white_space(c);
      if (c == '\t' || c == '\n' || c == '\r') c = ' ';
      if (c == 0 || c == kReplacement || is_control_or_format(c)) return;
      if (space) c = ' ';
    }
    const bool apart = options_.chinese_chars && is_chinese_character(c);
    if (apart) out.push_back(' ');
    append_utf8(out, c);
    if (apart) out.push_back(' ');
  }

  BertNormalizerOptions options_;
};

std::unique_ptr<Normalizer> read_chain(const Json& json) {
  std::vector<std::unique_ptr<Normalizer>> steps;
  const Json list = json.at("normalizers");
  if (!list.is(Json::Type::kArray)) list.fail("expected an array of normalizers");
  for (size_t i = 0; i < list.size(); ++i) steps.push_back(read_normalizer(list.at(i)));
  return std::make_unique<NormalizerChain>(std::move(steps));
}

}  // namespace

BertNormalizerOptions read_bert_options(const Json& json) {
  const bool lowercase = json.bool_or("lowercase", true);
  return {.clean_text = json.bool_or("clean_text", true),
          .chinese_chars = json.bool_or("handle_chinese_chars", true),
          .strip_accents = json.bool_or("strip_accents", lowercase),
          .lowercase = lowercase};
}

std::unique_ptr<Normalizer> make_bert_normalizer(const BertNormalizerOptions& options) {
  return std::make_unique<BertNormalizer>(options);
}

std::unique_ptr<Normalizer> read_normalizer(const Json& json) {
  static const std::map<std::string_view, NormalForm> kForms{{"NFC", NormalForm::kNfc},
                                                             {"NFD", NormalForm::kNfd},
                                                             {"NFKC", NormalForm::kNfkc},
                                                             {"NFKD", NormalForm::kNfkd}};
  const Json type = json.at("type");
  const std::string& name = type.as_string();
  if (const auto form = kForms.find(name); form != kForms.end()) {
    return std::make_unique<NormalFormStep>(form->second);
  }
  if (name == "Sequence") return read_chain(json);
  if (name == "Prepend") return std::make_unique<Prepend>(json.at("prepend").as_string());
  if (name == "Replace") return std::make_unique<Replace>(Replacement::from_json(json));
  if (name == "Lowercase") return std::make_unique<Lowercase>();
  if (name == "StripAccents") return std::make_unique<StripAccents>();
  if (name == "Strip") {
    return std::make_unique<Strip>(Strip::Ends{.left = json.bool_or("strip_left", true),
                                               .right = json.bool_or("strip_right", true)});
  }
  if (name == "BertNormalizer") return make_bert_normalizer(read_bert_options(json));
  if (name == "Precompiled") return read_precompiled(json);
  type.fail(
      "expected Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, "
      "BertNormalizer or Precompiled");
}

}  // namespace cleave::inline tokenizer
