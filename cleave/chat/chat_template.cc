#include "cleave/chat/chat_template.h"

#include <filesystem>

#include "cleave/base/error.h"
#include "cleave/chat/jinja/string_ops.h"
#include "cleave/file/file.h"
#include "cleave/text/json.h"

namespace cleave::inline chat {
namespace {

namespace fs = std::filesystem;
using jinja::ByteSpan;
using jinja::Value;

/// The special tokens that templates know by name.
std::vector<std::pair<std::string, Value>> special_tokens(const Tokenizer& tokenizer) {
  const SpecialIds& ids = tokenizer.special();
  const std::pair<const char*, std::optional<int64_t>> all[] = {
      {"bos_token", ids.bos},  {"eos_token", ids.eos}, {"pad_token", ids.pad},
      {"unk_token", ids.unk},  {"cls_token", ids.cls}, {"sep_token", ids.sep},
      {"mask_token", ids.mask}};
  std::vector<std::pair<std::string, Value>> out;
  for (const auto& [name, id] : all) {
    const std::optional<std::string> token = id ? tokenizer.token(*id) : std::nullopt;
    if (token) out.emplace_back(name, Value::text(*token));
  }
  return out;
}

/// The template in a tokenizer_config.json: a text, or a list of named texts.
std::optional<std::string> template_of_config(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  const Json config = Json::parse_file(path.string());
  if (!config.is(Json::Type::kObject) || !config.has("chat_template")) return std::nullopt;
  const Json found = config.at("chat_template");
  if (!found.is(Json::Type::kArray)) return found.as_string();
  for (size_t i = 0; i < found.size(); ++i) {
    if (found.at(i).at("name").as_string() == "default")
      return found.at(i).at("template").as_string();
  }
  found.fail("expected a template with the name \"default\"");
}

}  // namespace

constexpr std::string_view kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

Value chat_message(const std::string& role, const std::string& content) {
  return Value::dict(
      {{Value::text("role"), Value::text(role)}, {Value::text("content"), Value::text(content)}});
}

std::string message_text(const Value& message, const std::string& key) {
  for (const auto& [name, value] : message.members()) {
    if (name.string() == key && value.is_text()) return value.string();
  }
  return {};
}

ChatTemplate::ChatTemplate(std::string text, const std::string& source, const Tokenizer& tokenizer,
                           std::time_t now)
    : text_(std::move(text)),
      template_(text_, source),
      special_(special_tokens(tokenizer)),
      now_(now) {}

jinja::Rendered ChatTemplate::rendered(const ChatMessages& messages,
                                       bool add_generation_prompt) const {
  auto variables = special_;
  variables.emplace_back("messages", Value::list(messages));
  const Value none(nullptr);
  variables.emplace_back("tools", none);
  variables.emplace_back("documents", none);
  variables.emplace_back("add_generation_prompt", Value(add_generation_prompt));
  return template_.render(variables, {.now = now_});
}

std::string ChatTemplate::render(const ChatMessages& messages, bool add_generation_prompt) const {
  return rendered(messages, add_generation_prompt).text;
}

ChatText ChatTemplate::training_text(const ChatMessages& messages) const {
  jinja::Rendered whole = rendered(messages, /*add_generation_prompt=*/false);
  if (template_.has_generation()) return {std::move(whole.text), std::move(whole.generated)};
  std::vector<ByteSpan> assistant;
  ChatMessages before;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (message_text(messages[i], "role") == "assistant") {
      const std::string begin = render(before, /*add_generation_prompt=*/true);
      const std::string end =
          render({messages.begin(), messages.begin() + static_cast<ptrdiff_t>(i) + 1},
                 /*add_generation_prompt=*/false);
      CLEAVE_CHECK(end.starts_with(begin) && whole.text.starts_with(end), Code::kFormat,
                   "the chat template does not show what the assistant wrote: the text up to "
                   "message ",
                   i + 1,
                   " is not the beginning of the whole text; give a template "
                   "with {% generation %} blocks with --chat-template, or --train-on all");
      assistant.push_back({begin.size(), end.size()});
    }
    before.push_back(messages[i]);
  }
  return {std::move(whole.text), std::move(assistant)};
}

std::string ChatTemplate::turn_end() const {
  // A text that no template contains.
  const std::string answer = "Cleave-asks-for-the-end-of-a-turn";
  const std::string text =
      render({chat_message("user", "a"), chat_message("assistant", answer)}, false);
  const size_t at = text.rfind(answer);
  if (at == std::string::npos) return {};
  return std::string(jinja::strip(std::string_view(text).substr(at + answer.size()), std::nullopt));
}

std::shared_ptr<const ChatTemplate> load_chat_template(const std::string& wanted,
                                                       const std::string& folder,
                                                       const Tokenizer& tokenizer,
                                                       std::time_t now) {
  const auto make = [&](std::string text, const std::string& source) {
    return std::make_shared<const ChatTemplate>(std::move(text), source, tokenizer, now);
  };
  if (wanted == "chatml") return make(std::string(kChatMl), "the ChatML template");
  if (!wanted.empty()) return make(read_file(wanted), wanted);
  if (folder.empty()) return nullptr;
  const fs::path file = fs::path(folder) / "chat_template.jinja";
  if (fs::exists(file)) return make(read_file(file.string()), file.string());
  const fs::path config = fs::path(folder) / "tokenizer_config.json";
  auto text = template_of_config(config);
  return text ? make(std::move(*text), str(config.string(), ": chat_template")) : nullptr;
}

}  // namespace cleave::inline chat
