#include "cleave/tokenizer/replacement.h"

namespace cleave {

Replacement Replacement::from_json(const Json& json) {
  const Json pattern = json.at("pattern");
  Replacement out("", json.at("content").as_string());
  if (pattern.has("Regex")) {
    out.regex_ = Regex::from_json(pattern.at("Regex"));
  } else {
    out.from_ = pattern.at("String").as_string();
  }
  return out;
}

std::string Replacement::apply(std::string_view text) const {
  if (regex_) return regex_->replace(text, to_);
  if (from_.empty()) return std::string(text);
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  for (size_t found = text.find(from_); found != std::string_view::npos;
       found = text.find(from_, at)) {
    out.append(text, at, found - at);
    out += to_;
    at = found + from_.size();
  }
  out.append(text, at);
  return out;
}

}  // namespace cleave
