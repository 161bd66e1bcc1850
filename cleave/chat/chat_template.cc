#include "cleave/chat/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
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

/// The templates of a folder: one for conversations with tools, one for all others.
struct Templates {
  std::string text, source;
  std::optional<jinja::Template> for_tools{};
};

std::optional<std::string> template_named(const Json& list, std::string_view name) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (list.at(i).at("name").as_string() == name) return list.at(i).at("template").as_string();
  }
  return std::nullopt;
}

/// The templates in a tokenizer_config.json: a text, or a list of named texts.
std::optional<Templates> templates_of_config(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  const Json config = Json::parse_file(path.string());
  if (!config.is(Json::Type::kObject) || !config.has("chat_template")) return std::nullopt;
  const Json found = config.at("chat_template");
  const std::string source = str(path.string(), ": chat_template");
  if (!found.is(Json::Type::kArray)) return Templates{found.as_string(), source};
  auto text = template_named(found, "default");
  if (!text) found.fail("expected a template with the name \"default\"");
  Templates out{std::move(*text), source};
  if (const auto of_tools = template_named(found, kToolTemplateName)) {
    out.for_tools.emplace(*of_tools, str(source, ": ", kToolTemplateName));
  }
  return out;
}

/// The templates of a model's folder; its own files come before tokenizer_config.json.
std::optional<Templates> templates_of(const fs::path& folder) {
  const fs::path file = folder / "chat_template.jinja";
  if (!fs::exists(file)) return templates_of_config(folder / "tokenizer_config.json");
  Templates out{read_file(file.string()), file.string()};
  const fs::path of_tools = folder / "additional_chat_templates" / str(kToolTemplateName, ".jinja");
  if (fs::exists(of_tools)) out.for_tools.emplace(read_file(of_tools.string()), of_tools.string());
  return out;
}

ChatMessages first_of(const ChatMessages& messages, size_t count) {
  return {messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count)};
}

// Texts that no conversation contains.
constexpr std::string_view kBeginMark = "Cleave-marks-the-beginning-of-an-answer";
constexpr std::string_view kEndMark = "Cleave-marks-the-end-of-an-answer";

/// The parts of an answer that a template may print: all, and what follows its reasoning. Without
/// the white space around them, which templates remove.
std::vector<ByteSpan> contents_to_mark(const std::string& content) {
  const auto span_from = [&](size_t begin) -> ByteSpan {
    const auto text = jinja::strip(std::string_view(content).substr(begin), std::nullopt);
    if (text.empty()) return {content.size(), content.size()};
    const auto first = static_cast<size_t>(text.data() - content.data());
    return {first, first + text.size()};
  };
  std::vector<ByteSpan> out{span_from(0)};
  constexpr std::string_view kEndOfReasoning = "</think>";
  const size_t at = content.rfind(kEndOfReasoning);
  if (at != std::string::npos) out.push_back(span_from(at + kEndOfReasoning.size()));
  return out;
}

std::string with_marks_at(const std::string& content, const ByteSpan& span) {
  return str(content.substr(0, span.begin), kBeginMark,
             content.substr(span.begin, span.end - span.begin), kEndMark, content.substr(span.end));
}

/// The messages with another content of message `i`.
ChatMessages with_content(ChatMessages messages, size_t i, const std::string& content) {
  auto members = messages[i].members();
  for (auto& [name, value] : members) {
    if (name.string() == "content") value = Value::text(content);
  }
  messages[i] = Value::dict(std::move(members));
  return messages;
}

/// A text without marks, and the bytes that were between them.
struct Unmarked {
  std::string text;
  ByteSpan span;
};

/// Removes both marks; nullopt unless the text contains each mark exactly once.
std::optional<Unmarked> between_marks(std::string text) {
  const size_t begin = text.find(kBeginMark);
  if (begin == std::string::npos) return std::nullopt;
  text.erase(begin, kBeginMark.size());
  const size_t end = text.find(kEndMark, begin);
  if (end == std::string::npos) return std::nullopt;
  text.erase(end, kEndMark.size());
  const bool is_once =
      text.find(kBeginMark) == std::string::npos && text.find(kEndMark) == std::string::npos;
  return is_once ? std::optional(Unmarked{std::move(text), {begin, end}}) : std::nullopt;
}

const Value* member_of(const Value& value, std::string_view key) {
  if (!value.is_dict()) return nullptr;
  for (const auto& [name, member] : value.members()) {
    if (name.is_text() && name.string() == key) return &member;
  }
  return nullptr;
}

/// The names of the functions that a message calls; none if a call has no name.
std::vector<std::string> functions_called_by(const Value& message) {
  const Value* calls = member_of(message, "tool_calls");
  if (calls == nullptr || !calls->is_list()) return {};
  std::vector<std::string> names;
  for (const Value& call : calls->items()) {
    const Value* function = member_of(call, "function");
    const Value* name = member_of(function != nullptr ? *function : call, "name");
    if (name == nullptr || !name->is_text() || name->string().empty()) return {};
    names.push_back(name->string());
  }
  return names;
}

/// Refuses calls of functions that the text leaves out, because the model would learn not to call
/// them, and calls whose arguments are a JSON text that the template quotes once more: models are
/// trained with {"x": 1}, not with "{\"x\": 1}".
void check_calls(const ChatMessages& messages, const std::string& text) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const Value* calls = member_of(messages[i], "tool_calls");
    if (calls == nullptr || !calls->is_list()) continue;
    for (const std::string& name : functions_called_by(messages[i])) {
      CLEAVE_CHECK(text.find(name) != std::string::npos, Code::kFormat,
                   "the chat template leaves out the call of ", name, " in message ", i + 1,
                   "; give --chat-template a template that has tool calls, or remove the row");
    }
    for (const Value& call : calls->items()) {
      const Value* function = member_of(call, "function");
      const Value* given = member_of(function != nullptr ? *function : call, "arguments");
      // Without quotes in it, the quoted text may be another part of the conversation.
      if (given == nullptr || !given->is_text() || !given->string().starts_with('{') ||
          given->string().find('"') == std::string::npos) {
        continue;
      }
      jinja::Budget budget(UINT64_MAX, UINT64_MAX);
      CLEAVE_CHECK(text.find(jinja::to_json(*given, {}, budget)) == std::string::npos,
                   Code::kFormat, "the chat template quotes the arguments of a call in message ",
                   i + 1,
                   ", which are a JSON text; make them an object, as with: jq -c "
                   "'(.messages[].tool_calls[]?.function.arguments) |= fromjson' FILE");
    }
  }
}

int64_t occurrences(std::string_view text, std::string_view wanted) {
  int64_t count = 0;
  for (size_t at = text.find(wanted); at != std::string_view::npos;
       at = text.find(wanted, at + wanted.size())) {
    ++count;
  }
  return count;
}

/// The bytes at the beginning of `rest` that are an answer which calls functions, if the template
/// prints `alone` for an answer that ends the conversation, and elsewhere leaves out what comes
/// before the calls (reasoning). Nothing if `rest` does not begin with all the calls.
std::optional<size_t> calls_without_reasoning(std::string_view alone, std::string_view rest,
                                              const std::vector<std::string>& functions) {
  for (size_t begin = 0; begin < alone.size(); ++begin) {
    const std::string_view kept = alone.substr(begin);
    if (!rest.starts_with(kept)) continue;
    const bool has_all =
        std::all_of(functions.begin(), functions.end(), [&](const std::string& name) {
          return occurrences(kept, name) >= std::count(functions.begin(), functions.end(), name);
        });
    return has_all && !functions.empty() ? std::optional(kept.size()) : std::nullopt;
  }
  return std::nullopt;
}

/// The tokenizer's end token; empty if it has none.
std::string end_token(const std::vector<std::pair<std::string, Value>>& special) {
  for (const auto& [name, token] : special) {
    if (name == "eos_token") return token.string();
  }
  return {};
}

/// The bytes of `rest` that end an answer's turn, such as <|im_end|>, if the template prints `tail`
/// after an answer that ends the conversation. Nothing if the answer does not end in `rest` that
/// way.
std::optional<size_t> common_end(std::string_view tail, std::string_view rest,
                                 std::string_view end_token) {
  const auto stripped = [](std::string_view text) { return jinja::strip(text, std::nullopt); };
  const auto same_bytes = [&](std::string_view end) -> std::optional<size_t> {
    const auto same = std::mismatch(end.begin(), end.end(), rest.begin(), rest.end()).first;
    if (!stripped({same, end.end()}).empty()) return std::nullopt;
    return static_cast<size_t>(same - end.begin());
  };
  if (const auto count = same_bytes(tail)) return count;
  // Some templates, as Phi-3's, print the end token once, after all messages.
  const bool ends_text = !end_token.empty() && tail.ends_with(end_token);
  if (ends_text) tail.remove_suffix(end_token.size());
  return ends_text && !stripped(tail).empty() ? same_bytes(tail) : std::nullopt;
}

}  // namespace

constexpr std::string_view kChatMl =
    "{% for message in messages %}"
    "{% if message['tool_calls'] %}{{ raise_exception('ChatML has no tool calls') }}{% endif %}"
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
                           std::time_t now, std::optional<jinja::Template> for_tools)
    : text_(std::move(text)),
      template_(text_, source),
      for_tools_(std::move(for_tools)),
      special_(special_tokens(tokenizer)),
      now_(now) {}

uint64_t ChatTemplate::fingerprint() const {
  std::string all = str(to_hex(template_.fingerprint()),
                        for_tools_ ? to_hex(for_tools_->fingerprint()) : "none", now_);
  for (const auto& [name, token] : special_) {
    all += str(' ', name, ' ', token.string().size(), ' ', token.string());
  }
  return hash_bytes(all);
}

const jinja::Template& ChatTemplate::template_for(const TemplateVariables& own) const {
  const auto tools = std::find_if(own.rbegin(), own.rend(),
                                  [](const auto& variable) { return variable.first == "tools"; });
  const bool has_tools = tools != own.rend() && !tools->second.is_none();
  return has_tools && for_tools_ ? *for_tools_ : template_;
}

jinja::Rendered ChatTemplate::rendered(const ChatMessages& messages, bool add_generation_prompt,
                                       const TemplateVariables& own) const {
  auto variables = special_;
  variables.emplace_back("tools", Value(nullptr));
  variables.emplace_back("documents", Value(nullptr));
  variables.insert(variables.end(), own.begin(), own.end());  // the last one of a name counts
  variables.emplace_back("messages", Value::list(messages));
  variables.emplace_back("add_generation_prompt", Value(add_generation_prompt));
  jinja::Rendered out = template_for(own).render(variables, {.now = now_});
  check_calls(messages, out.text);
  return out;
}

std::string ChatTemplate::render(const ChatMessages& messages, bool add_generation_prompt,
                                 const TemplateVariables& own) const {
  return rendered(messages, add_generation_prompt, own).text;
}

ChatText ChatTemplate::training_text(const ChatMessages& messages,
                                     const TemplateVariables& own) const {
  jinja::Rendered whole = rendered(messages, /*add_generation_prompt=*/false, own);
  if (template_for(own).has_generation())
    return {std::move(whole.text), std::move(whole.generated)};
  std::vector<ByteSpan> assistant;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (message_text(messages[i], "role") != "assistant") continue;
    assistant.push_back(part_of(messages, i, own, whole.text));
  }
  return {std::move(whole.text), std::move(assistant)};
}

size_t ChatTemplate::num_parts(const ChatMessages& first, const TemplateVariables& own) const {
  const auto answers = std::count_if(first.begin(), first.end(), [](const Value& message) {
    return message_text(message, "role") == "assistant";
  });
  if (answers == 0 || !template_for(own).has_generation()) return static_cast<size_t>(answers);
  // With the beginning of an answer, so that a block after all messages (Phi-3's end token) is not
  // counted.
  return rendered(first, /*add_generation_prompt=*/true, own).generated.size();
}

std::optional<std::string> ChatTemplate::text_before_answer(const ChatMessages& before,
                                                            const TemplateVariables& own) const {
  try {
    return render(before, /*add_generation_prompt=*/true, own);
  } catch (const Error&) {
    if (!before.empty()) throw;
    return std::nullopt;  // templates of Llama 3 and Qwen3 read the first message
  }
}

ByteSpan ChatTemplate::part_of(const ChatMessages& messages, size_t i, const TemplateVariables& own,
                               const std::string& whole) const {
  const ChatMessages before = first_of(messages, i);
  const ChatMessages up_to = first_of(messages, i + 1);
  const auto before_answer = text_before_answer(before, own);
  const std::string begin = before_answer.value_or("");
  const std::string end = render(up_to, /*add_generation_prompt=*/false, own);
  const bool begins = before_answer && whole.starts_with(begin);
  if (begins && end.starts_with(begin) && whole.starts_with(end)) return {begin.size(), end.size()};
  const std::string content = message_text(messages[i], "content");
  for (const ByteSpan& marked : contents_to_mark(content)) {
    const ChatMessages with_marks = with_content(messages, i, with_marks_at(content, marked));
    const auto found = between_marks(render(with_marks, false, own));
    if (!found || found->text != whole) continue;
    const auto alone = between_marks(render(first_of(with_marks, i + 1), false, own));
    if (!alone) continue;
    const auto rest = std::string_view(whole).substr(found->span.end);
    const auto end_of_turn =
        common_end(alone->text.substr(alone->span.end), rest, end_token(special_));
    if (!end_of_turn) continue;
    return {begins ? begin.size() : found->span.begin, found->span.end + *end_of_turn};
  }
  if (begins && end.starts_with(begin)) {
    const auto at = static_cast<std::ptrdiff_t>(begin.size());
    const auto count =
        calls_without_reasoning({end.begin() + at, end.end()}, {whole.begin() + at, whole.end()},
                                functions_called_by(messages[i]));
    if (count) return {begin.size(), begin.size() + *count};
  }
  throw Error(Code::kFormat,
              str("the chat template changes or drops a part of message ", i + 1,
                  ", so the tokens of the answer cannot be found; give --chat-template a template "
                  "with {% generation %} blocks, or --train-on all"));
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
  const auto make = [&](Templates templates) {
    return std::make_shared<const ChatTemplate>(std::move(templates.text), templates.source,
                                                tokenizer, now, std::move(templates.for_tools));
  };
  if (wanted == "chatml") return make({std::string(kChatMl), "the ChatML template"});
  if (!wanted.empty()) return make({read_file(wanted), wanted});
  auto found = folder.empty() ? std::nullopt : templates_of(folder);
  return found ? make(std::move(*found)) : nullptr;
}

}  // namespace cleave::inline chat
