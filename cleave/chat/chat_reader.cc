#include "cleave/chat/chat_reader.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "cleave/base/error.h"
#include "cleave/text/jsonl.h"

namespace cleave::inline chat {
namespace {

using jinja::Value;

constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant",
                                                 "tool"};

/// ShareGPT's names of roles, and ours.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kShareGptRoles{
    {{"system", "system"},
     {"human", "user"},
     {"user", "user"},
     {"gpt", "assistant"},
     {"chatgpt", "assistant"},
     {"assistant", "assistant"},
     {"tool", "tool"}}};

/// The keys that name the kind of a row; none if it is not a conversation.
std::vector<std::string> kinds_of(const Json& row) {
  std::vector<std::string> kinds;
  if (!row.is(Json::Type::kObject)) return kinds;
  for (const char* list : {"messages", "conversations"}) {
    if (row.has(list)) kinds.emplace_back(list);
  }
  if (row.has("prompt") && row.has("completion")) kinds.emplace_back("prompt");
  if (row.has("instruction") && row.has("output")) kinds.emplace_back("instruction");
  return kinds;
}

/// The content of a message as one text: a text, or a list of {"type": "text", "text": "..."}.
std::string content_of(const Json& content) {
  if (!content.is(Json::Type::kArray)) return content.as_string();
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json part = content.at(i);
    if (part.string_or("type", "text") != "text") {
      part.at("type").fail("expected text, the only kind of content that is supported");
    }
    text += part.at("text").as_string();
  }
  return text;
}

/// The key of a message, as OpenAI's, that says whether its text is trained: 0 or 1.
constexpr const char* kWeight = "weight";

/// A message of ShareGPT: {"from": "human", "value": "..."}.
Value share_gpt_message(const Json& message) {
  const Json from = message.at("from");
  const auto* role =
      std::find_if(kShareGptRoles.begin(), kShareGptRoles.end(),
                   [&](const auto& names) { return names.first == from.as_string(); });
  if (role == kShareGptRoles.end()) {
    from.fail("expected system, human, user, gpt, chatgpt, assistant or tool");
  }
  auto members = chat_message(std::string(role->second), message.at("value").as_string()).members();
  if (message.has(kWeight)) {
    members.emplace_back(Value::text(kWeight), Value::from_json(message.at(kWeight)));
  }
  return Value::dict(std::move(members));
}

/// Refuses keys of a message whose meaning would be lost.
void check_message_keys(const Json& message) {
  if (message.has(kWeight)) {
    const Json weight = message.at(kWeight);
    const double number = weight.as_number();
    if (number != 0 && number != 1) weight.fail("expected 1, or 0 for an answer not to train on");
  }
  if (message.has("function_call")) {
    message.at("function_call").fail("expected \"tool_calls\", which replaced this key");
  }
}

Value message_of(const Json& message) {
  if (!message.is(Json::Type::kObject)) message.fail("expected a message with \"role\"");
  check_message_keys(message);
  if (message.has("from") && !message.has("role")) return share_gpt_message(message);
  const Json role = message.at("role");
  if (std::find(kRoles.begin(), kRoles.end(), role.as_string()) == kRoles.end()) {
    role.fail("expected system, developer, user, assistant or tool");
  }
  std::vector<std::pair<Value, Value>> members;
  for (size_t i = 0; i < message.size(); ++i) {
    const Json value = message.at(i);
    const bool is_content = message.key(i) == "content";
    const bool is_null = value.is(Json::Type::kNull);
    if (is_null && !is_content) continue;  // a table gives a message the keys of all others
    members.emplace_back(Value::text(message.key(i)), is_content && !is_null
                                                          ? Value::text(content_of(value))
                                                          : Value::from_json(value));
  }
  // An assistant that calls tools may write no text.
  const bool has_calls = message.has("tool_calls") && message.at("tool_calls").size() > 0;
  if (!message.has("content") && !has_calls) {
    message.fail("expected a message with \"content\"");
  }
  return Value::dict(std::move(members));
}

/// The function descriptions of a row; none if it has none.
Value tools_of(const Json& row) {
  if (!row.has("tools")) return nullptr;
  const Json tools = row.at("tools");
  if (tools.is(Json::Type::kArray)) return Value::from_json(tools);
  constexpr const char* kExpected =
      "expected a list of function descriptions, or its JSON as a text";
  if (!tools.is(Json::Type::kString)) tools.fail(kExpected);
  const std::string& text = tools.as_string();
  if (text.empty()) return nullptr;
  try {
    const Json list = Json::parse(text, "tools");
    if (list.is(Json::Type::kArray)) return Value::from_json(list);
    if (list.is(Json::Type::kNull)) return nullptr;
  } catch (const Error&) {
    tools.fail(kExpected);
  }
  tools.fail(kExpected);
}

/// The instruction, a blank line and the input.
std::string instruction_of(const Json& row) {
  if (row.has("history")) {  // earlier turns, in files for LLaMA-Factory
    const Json turns = row.at("history");
    const bool is_empty = turns.is(Json::Type::kArray) && turns.size() == 0;
    if (!is_empty) turns.fail("expected none; write rows with earlier turns as \"messages\"");
  }
  const std::string input = row.string_or("input", "");
  return row.at("instruction").as_string() + (input.empty() ? "" : "\n\n" + input);
}

/// The messages of a row with a prompt and its completion, both texts or both lists of messages, or
/// with an instruction and its output.
ChatMessages question_and_answer(const Json& row, const std::string& kind) {
  if (kind != "prompt") {
    return {chat_message("user", instruction_of(row)),
            chat_message("assistant", row.at("output").as_string())};
  }
  const Json prompt = row.at("prompt"), completion = row.at("completion");
  if (!prompt.is(Json::Type::kArray)) {
    return {chat_message("user", prompt.as_string()),
            chat_message("assistant", completion.as_string())};
  }
  ChatMessages messages = read_messages(prompt);
  const ChatMessages answer = read_messages(completion);
  messages.insert(messages.end(), answer.begin(), answer.end());
  return messages;
}

/// The messages of a row.
ChatMessages messages_of(const Json& row, const std::string& kind) {
  const bool is_list = kind == "messages" || kind == "conversations";
  return with_system(row, is_list ? read_messages(row.at(kind)) : question_and_answer(row, kind));
}

/// Whether a message is an answer that says that it is not trained.
bool has_weight_zero(const Value& message) {
  const auto is_weight_zero = [](const auto& member) {
    const auto& [name, value] = member;
    return name.string() == kWeight && value.is_number() && value.number() == 0;
  };
  return message_text(message, "role") == "assistant" &&
         std::any_of(message.members().begin(), message.members().end(), is_weight_zero);
}

/// Whether the first row of a file is a conversation.
bool begins_with_chat(const std::string& path) {
  const bool named_jsonl = std::filesystem::path(path).extension() == ".jsonl";
  if (!named_jsonl && first_byte(path) != '{') return false;
  std::optional<Json> first;
  try {
    first = JsonLines(path).next();
  } catch (const Error& error) {
    if (named_jsonl || error.code() != Code::kFormat) throw;
    return false;  // a text that begins with {
  }
  std::vector<std::string> kinds = first ? kinds_of(*first) : std::vector<std::string>{};
  if (kinds.empty() || first->has("input_ids")) return false;
  if (first->has("text")) kinds.emplace_back("text");
  // None is ignored: often they are the same conversation, written for different programs.
  CLEAVE_CHECK(kinds.size() == 1, Code::kFormat, path, ": the first row has \"", kinds.front(),
               "\" and \"", kinds.back(), "\"; remove one, as with: jq -c 'del(.", kinds.back(),
               ")' ", path);
  return true;
}

}  // namespace

ChatMessages read_messages(const Json& list) {
  if (!list.is(Json::Type::kArray)) list.fail("expected an array of messages");
  if (list.size() == 0) list.fail("expected at least one message");
  ChatMessages out;
  for (size_t i = 0; i < list.size(); ++i) out.push_back(message_of(list.at(i)));
  return out;
}

ChatMessages with_system(const Json& row, ChatMessages messages) {
  const std::string system = row.string_or("system", "");
  const bool has_own = !messages.empty() && message_text(messages.front(), "role") == "system";
  if (!system.empty() && !has_own) {
    messages.insert(messages.begin(), chat_message("system", system));
  }
  return messages;
}

TemplateVariables variables_of(const Json& row) {
  TemplateVariables out{{"tools", tools_of(row)}};
  constexpr const char* kMore = "chat_template_kwargs";
  if (!row.has(kMore)) return out;
  const Json more = row.at(kMore);
  if (!more.is(Json::Type::kObject)) more.fail("expected an object of variables for the template");
  for (size_t i = 0; i < more.size(); ++i) {
    out.emplace_back(more.key(i), Value::from_json(more.at(i)));
  }
  return out;
}

bool holds_chats(const std::vector<std::string>& files) {
  if (files.empty()) return false;
  const bool is_first = begins_with_chat(files.front());
  for (const std::string& file : files) {
    if (begins_with_chat(file) == is_first) continue;
    throw Error(Code::kUsage,
                str(is_first ? files.front() : file, " holds conversations, ",
                    is_first ? file : files.front(), " does not; to train on both, give each a ",
                    "weight (FILE:WEIGHT); otherwise use one command for each"));
  }
  return is_first;
}

ChatReader::ChatReader(std::shared_ptr<const Tokenizer> tokenizer, ChatOptions options)
    : tokenizer_(std::move(tokenizer)), options_(std::move(options)) {}

TokenizedChat ChatReader::read(const Json& row, const std::string& place) {
  const std::vector<std::string> kinds = kinds_of(row);
  CLEAVE_CHECK(!kinds.empty(), Code::kFormat, place, ": the row is not a conversation",
               first_place_.empty() ? "" : str(", unlike ", first_place_),
               "; expected \"messages\", \"conversations\", \"prompt\" with \"completion\", or "
               "\"instruction\" with \"output\"; put other rows into another file");
  CLEAVE_CHECK(kinds.size() == 1, Code::kFormat, place, ": the row has \"", kinds.front(),
               "\" and \"", kinds.back(), "\"; remove one");
  const std::string& kind = kinds.front();
  if (kind_.empty()) {
    kind_ = kind;
    first_place_ = place;
  }
  CLEAVE_CHECK(kind == kind_, Code::kFormat, place, ": the row has \"", kind, "\", but that of ",
               first_place_, " has \"", kind_, "\"; all rows must be of one kind");
  TokenizedChat out = [&] {
    try {
      return tokenized(row, kind);
    } catch (const Error& error) {
      const std::string what = error.what();
      throw Error(error.code(), what.starts_with(place) ? what : str(place, ": ", what));
    }
  }();
  if (options_.train_on_all) std::fill(out.is_trained.begin(), out.is_trained.end(), true);
  const bool is_trained =
      std::find(out.is_trained.begin(), out.is_trained.end(), true) != out.is_trained.end();
  CLEAVE_CHECK(is_trained, Code::kFormat, place,
               ": the conversation has no text of the assistant, so nothing is trained; remove the "
               "row, or give --train-on all");
  return out;
}

TokenizedChat ChatReader::tokenized(const Json& row, const std::string& kind) const {
  if (options_.chat_template) return rendered(row, kind);
  const bool is_prompt = kind == "prompt";
  const bool is_text = is_prompt ? !row.at("prompt").is(Json::Type::kArray) : kind == "instruction";
  CLEAVE_CHECK(is_text, Code::kUsage, "the model has no chat template, which ",
               is_prompt ? "lists of messages" : str("\"", kind, "\""),
               " need; give --chat-template chatml or a file to train or tokenize, or put "
               "chat_template.jinja into the model's folder");
  std::string prompt = row.string_or("system", "");
  if (!prompt.empty()) prompt += "\n\n";
  prompt += is_prompt ? row.at("prompt").as_string() : instruction_of(row) + "\n\n";
  const std::string answer = row.at(is_prompt ? "completion" : "output").as_string();
  if (answer.empty()) row.fail("expected a completion that is not empty");
  return tokenize_completion(*tokenizer_, prompt, answer);
}

TokenizedChat ChatReader::rendered(const Json& row, const std::string& kind) const {
  const ChatMessages messages = messages_of(row, kind);
  const TemplateVariables own = variables_of(row);
  if (options_.train_on_all) {
    return tokenize_chat(*tokenizer_, {options_.chat_template->render(messages, false, own), {}});
  }
  ChatText text = options_.chat_template->training_text(messages, own);
  std::vector<jinja::ByteSpan>& parts = text.assistant;
  // The end of the parts of the first `count` messages. A part after all messages belongs to the
  // last message.
  const auto end_of = [&](size_t count) {
    if (count == messages.size()) return parts.end();
    const ChatMessages first(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count));
    const size_t num_parts = options_.chat_template->num_parts(first, own);
    return parts.begin() + static_cast<ptrdiff_t>(std::min(parts.size(), num_parts));
  };
  const bool has_prompt = kind == "prompt" && row.at("prompt").is(Json::Type::kArray);
  const size_t num_prompt =
      has_prompt ? with_system(row, read_messages(row.at("prompt"))).size() : 0;
  // Backwards, because the parts after an erased one have other numbers.
  for (size_t i = messages.size(); i-- > num_prompt;) {
    if (has_weight_zero(messages[i])) parts.erase(end_of(i), end_of(i + 1));
  }
  parts.erase(parts.begin(), end_of(num_prompt));
  return tokenize_chat(*tokenizer_, text);
}

}  // namespace cleave::inline chat
