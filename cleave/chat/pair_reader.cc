#include "cleave/chat/pair_reader.h"

#include <algorithm>
#include <optional>

#include "cleave/base/error.h"
#include "cleave/chat/chat_reader.h"

namespace cleave::inline chat {
namespace {

constexpr const char* kExpected =
    "expected \"chosen\" and \"rejected\", both texts or both lists of messages, and perhaps "
    "\"prompt\"";

bool is_list(const Json& value) {
  return value.is(Json::Type::kArray);
}

/// What all rows of a file have in common: "texts", "lists of messages with \"prompt\"", ...
/// Throws Error(kFormat) if a row is no pair.
std::string form_of(const Json& row) {
  if (!row.is(Json::Type::kObject)) row.fail(kExpected);
  for (const char* key : {"chosen", "rejected"}) {
    CLEAVE_CHECK(row.has(key), Code::kFormat, "the row has no \"", key, "\"; ", kExpected);
  }
  const bool of_messages = is_list(row.at("chosen"));
  CLEAVE_CHECK(is_list(row.at("rejected")) == of_messages, Code::kFormat, "\"chosen\" is a ",
               of_messages ? "list" : "text", ", \"rejected\" is not; ", kExpected);
  return str(of_messages ? "lists of messages" : "texts",
             row.has("prompt") ? " with \"prompt\"" : "");
}

/// Refuses a pair of texts with a part of the prompt under another key: what both answers happen to
/// begin with would be its prompt.
void check_pair_keys(const Json& row) {
  for (const char* key : {"question", "instruction", "input"}) {
    if (!row.has("prompt") && row.has(key)) row.at(key).fail("rename the key to \"prompt\"");
  }
  if (!row.string_or("system", "").empty()) {
    row.at("system").fail(
        "only rows of messages may have it; put the text at the beginning of \"prompt\"");
  }
}

/// Bytes of the common beginning of two texts. It ends before the character that differs, not
/// within it, and before a space in front of that character, because a token often begins with a
/// space.
size_t common_bytes(const std::string& a, const std::string& b) {
  auto count =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const auto is_inside = [](const std::string& text, size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };
  while (count > 0 && (is_inside(a, count) || is_inside(b, count))) --count;
  return count > 0 && a[count - 1] == ' ' ? count - 1 : count;
}

/// Number of equal messages at the beginning of two lists.
size_t common_messages(const Json& a, const Json& b) {
  const size_t most = std::min(a.size(), b.size());
  size_t count = 0;
  while (count < most && a.at(count).dump() == b.at(count).dump()) ++count;
  return count;
}

/// The messages from `first` on.
ChatMessages messages_from(const ChatMessages& all, size_t first) {
  return {all.begin() + static_cast<std::ptrdiff_t>(first), all.end()};
}

[[noreturn]] void refuse_empty(const char* key) {
  throw Error(Code::kFormat, str("the ", key, " answer is empty; remove the row"));
}

void require_trained(const TokenizedChat& answer, const char* key) {
  const auto& trained = answer.is_trained;
  if (std::find(trained.begin(), trained.end(), true) == trained.end()) refuse_empty(key);
}

}  // namespace

JsonLines open_pairs(const std::string& file) {
  return JsonLines(file,
                   "preferences are JSONL, whose lines are objects with \"chosen\" and "
                   "\"rejected\"");
}

bool holds_message_pairs(const std::vector<std::string>& files) {
  if (files.empty()) return false;
  const std::optional<Json> first = open_pairs(files.front()).next();
  return first && first->is(Json::Type::kObject) && first->has("chosen") &&
         is_list(first->at("chosen"));
}

PairReader::PairReader(std::shared_ptr<const Tokenizer> tokenizer,
                       std::shared_ptr<const ChatTemplate> chat_template)
    : tokenizer_(std::move(tokenizer)), chat_template_(std::move(chat_template)) {}

TokenizedPair PairReader::read(const Json& row, const std::string& place) {
  try {
    const std::string form = form_of(row);
    if (form_.empty()) {
      form_ = form;
      first_place_ = place;
    }
    CLEAVE_CHECK(form == form_, Code::kFormat, "the row has ", form, ", but that of ", first_place_,
                 " has ", form_, "; all rows must be of one form");
    return tokenized(row);
  } catch (const Error& error) {
    const std::string what = error.what();
    throw Error(error.code(), what.starts_with(place) ? what : str(place, ": ", what));
  }
}

TokenizedPair PairReader::tokenized(const Json& row) const {
  CLEAVE_CHECK(row.at("chosen").dump() != row.at("rejected").dump(), Code::kFormat,
               "the chosen and the rejected answer are identical; remove the row");
  TokenizedPair pair = is_list(row.at("chosen")) ? of_messages(row) : of_texts(row);
  require_trained(pair.chosen, "chosen");
  require_trained(pair.rejected, "rejected");
  CLEAVE_CHECK(pair.chosen.ids != pair.rejected.ids, Code::kFormat,
               "the chosen and the rejected answer have the same tokens; remove the row");
  return pair;
}

TokenizedPair PairReader::of_texts(const Json& row) const {
  check_pair_keys(row);
  std::string chosen = row.at("chosen").as_string();
  std::string rejected = row.at("rejected").as_string();
  std::string prompt;
  if (row.has("prompt")) {
    prompt = row.at("prompt").as_string();
  } else {
    const size_t count = common_bytes(chosen, rejected);
    CLEAVE_CHECK(count > 0, Code::kFormat,
                 "the row has no prompt: the texts of \"chosen\" and \"rejected\" begin "
                 "differently; begin both with the prompt, or add \"prompt\"");
    prompt = chosen.substr(0, count);
    chosen.erase(0, count);
    rejected.erase(0, count);
  }
  if (chosen.empty()) refuse_empty("chosen");
  if (rejected.empty()) refuse_empty("rejected");
  return {.chosen = tokenize_completion(*tokenizer_, prompt, chosen),
          .rejected = tokenize_completion(*tokenizer_, prompt, rejected)};
}

TokenizedPair PairReader::of_messages(const Json& row) const {
  CLEAVE_CHECK(chat_template_, Code::kUsage,
               "the model has no chat template, which lists of messages need; give "
               "--chat-template chatml or a file to train, or put chat_template.jinja into the "
               "model's folder");
  for (const char* key : {"chosen", "rejected"}) {
    if (row.at(key).size() == 0) refuse_empty(key);
  }
  ChatMessages chosen = read_messages(row.at("chosen"));
  ChatMessages rejected = read_messages(row.at("rejected"));
  ChatMessages prompt;
  if (row.has("prompt") && is_list(row.at("prompt"))) {
    prompt = read_messages(row.at("prompt"));
  } else {
    const size_t count = common_messages(row.at("chosen"), row.at("rejected"));
    CLEAVE_CHECK(count > 0, Code::kFormat,
                 "the row has no prompt: the first messages of \"chosen\" and \"rejected\" "
                 "differ; begin both with the same message, or add \"prompt\"");
    if (count == chosen.size()) refuse_empty("chosen");
    if (count == rejected.size()) refuse_empty("rejected");
    prompt.assign(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(count));
    chosen = messages_from(chosen, count);
    rejected = messages_from(rejected, count);
  }
  prompt = with_system(row, std::move(prompt));
  const TemplateVariables own = variables_of(row);
  return {.chosen = rendered(prompt, chosen, own), .rejected = rendered(prompt, rejected, own)};
}

/// The answer is the text after that of the prompt with the beginning of an answer. A template may
/// begin an answer with text that a finished answer does not have, such as DeepSeek R1's "<think>":
/// then it begins where training on chats finds it.
TokenizedChat PairReader::rendered(const ChatMessages& prompt, const ChatMessages& answer,
                                   const TemplateVariables& own) const {
  ChatMessages all = prompt;
  all.insert(all.end(), answer.begin(), answer.end());
  const std::string before = chat_template_->render(prompt, true, own);
  const std::string text = chat_template_->render(all, false, own);
  size_t begin = before.size();
  if (!text.starts_with(before)) {
    const ChatText parts = chat_template_->training_text(all, own);
    const size_t first = chat_template_->num_parts(prompt, own);
    CLEAVE_CHECK(first < parts.assistant.size(), Code::kFormat,
                 "the chat template renders the prompt differently with an answer after it, so the "
                 "answer's tokens are not known; give another --chat-template");
    begin = parts.assistant[first].begin;
  }
  return tokenize_chat(*tokenizer_, {text, {{begin, text.size()}}});
}

}  // namespace cleave::inline chat
