#include "cleave/base/option.h"

#include <charconv>
#include <type_traits>

#include "cleave/base/str.h"

namespace cleave::option {
namespace {

std::string shown(bool value) {
  return value ? "on" : "off";
}

std::string shown(const std::string& value) {
  return value;
}

template <class Number>
std::enable_if_t<std::is_arithmetic_v<Number>, std::string> shown(Number number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

template <class Number>
std::string shown(const std::optional<Number>& number) {
  return number ? shown(*number) : "";
}

// In quotes: a text may hold commas.
std::string shown(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) list += str(list.empty() ? "" : ", ", '\'', text, '\'');
  return list;
}

// Numbers between commas.
template <class List>
std::enable_if_t<!std::is_arithmetic_v<List>, std::string> shown(const List& list) {
  std::string text;
  for (const auto& element : list) text += (text.empty() ? "" : ",") + shown(element);
  return text;
}

}  // namespace

std::string text_of(const Target& target) {
  return std::visit([](const auto* value) { return shown(*value); }, target);
}

std::vector<std::pair<std::string, std::string>> matching(const std::vector<Section>& sections) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const Section& section : sections) {
    for (const Row& row : section.rows) {
      if (row.across == kMustMatch) found.emplace_back("--" + row.name, text_of(row.target));
    }
  }
  return found;
}

Row tokenizer(std::string* target, std::string default_text) {
  return {target, "tokenizer", "bytes|DIR",
          "one token per byte, or the tokenizer of a folder, GGUF file or ORG/NAME of the Hugging "
          "Face cache",
          std::move(default_text)};
}

Row chat_template(std::string* target) {
  return {target, "chat-template", "chatml|FILE",
          "template that renders chats: ChatML, or a Jinja file", "that of the tokenizer"};
}

Row train_on(std::string* target) {
  return {target,    "train-on",
          "",        "chat tokens that count in the loss",
          "",        Choices{"assistant", "all"},
          kMustMatch};
}

}  // namespace cleave::option
