#pragma once
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/chat/jinja/template.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline chat {

/// The messages of a conversation in order: dicts with `role` and `content`, and further keys that
/// a template may read.
using ChatMessages = std::vector<jinja::Value>;

/// A message of a conversation.
jinja::Value chat_message(const std::string& role, const std::string& content);
/// The text under `key` of a message; empty if it has none.
std::string message_text(const jinja::Value& message, const std::string& key);

/// The text of a conversation and what the assistant wrote in it, in bytes.
struct ChatText {
  std::string text;
  std::vector<jinja::ByteSpan> assistant;
};

/// Variables of a conversation for a template, by name: "tools", "enable_thinking".
using TemplateVariables = std::vector<std::pair<std::string, jinja::Value>>;

/// The chat template of a model: renders messages as the text that the model reads. The result
/// equals that of transformers' apply_chat_template without documents. Immutable.
class ChatTemplate {
 public:
  /// `source` names the template in messages. Templates may refer to the special tokens of
  /// `tokenizer` (bos_token, ...) and to the time `now`. `for_tools` renders the conversations that
  /// have "tools"; without it `text` renders all. Throws Error(kFormat) if the template does not
  /// parse.
  ChatTemplate(std::string text, const std::string& source, const Tokenizer& tokenizer,
               std::time_t now, std::optional<jinja::Template> for_tools = std::nullopt);

  /// The text of the messages; with `add_generation_prompt` the beginning of an answer follows.
  /// `own`: what the template knows in addition. Throws Error(kFormat) if the template fails or
  /// refuses the messages, if it leaves out a call of a function, or if it would quote the
  /// arguments of a call that are a JSON text.
  [[nodiscard]] std::string render(const ChatMessages& messages, bool add_generation_prompt,
                                   const TemplateVariables& own = {}) const;

  /// The text of the messages with the parts that the assistant wrote: what the template's
  /// {% generation %} blocks print, several for a message in some templates. A template without
  /// such blocks is rendered up to each assistant message: the message's one part begins where the
  /// text of the messages before it, with the beginning of an answer, ends; it ends where the text
  /// up to the message ends. A template may render earlier answers otherwise than the last one
  /// (Qwen3 leaves out their reasoning): the part is then found by marks around the message's
  /// content, or by its calls of functions. Throws Error(kFormat) if the content does not appear
  /// unchanged.
  [[nodiscard]] ChatText training_text(const ChatMessages& messages,
                                       const TemplateVariables& own = {}) const;

  /// How many of the parts in training_text() of a conversation are of its first messages.
  [[nodiscard]] size_t num_parts(const ChatMessages& first,
                                 const TemplateVariables& own = {}) const;

  /// What the template prints after the text of an answer, without white space at its end, such as
  /// "<|im_end|>"; empty if nothing.
  [[nodiscard]] std::string turn_end() const;

  /// The template itself, not that for tools.
  [[nodiscard]] const std::string& text() const { return text_; }
  /// Hash of everything that the texts of conversations depend on, except the conversations: both
  /// templates, the special tokens and the time.
  [[nodiscard]] uint64_t fingerprint() const;

 private:
  [[nodiscard]] const jinja::Template& template_for(const TemplateVariables& own) const;
  [[nodiscard]] jinja::Rendered rendered(const ChatMessages& messages, bool add_generation_prompt,
                                         const TemplateVariables& own) const;
  /// The text that an answer after these messages begins with; nullopt if there are no messages and
  /// the template needs one.
  [[nodiscard]] std::optional<std::string> text_before_answer(const ChatMessages& before,
                                                              const TemplateVariables& own) const;
  [[nodiscard]] jinja::ByteSpan part_of(const ChatMessages& messages, size_t i,
                                        const TemplateVariables& own,
                                        const std::string& whole) const;

  std::string text_;
  jinja::Template template_;
  std::optional<jinja::Template> for_tools_;
  std::vector<std::pair<std::string, jinja::Value>> special_;
  std::time_t now_;
};

/// The name of a model's template for conversations that have "tools", as in transformers.
inline constexpr std::string_view kToolTemplateName = "tool_use";

/// The ChatML template, without a begin token.
extern const std::string_view kChatMl;

/// The chat template `wanted`: "chatml" or a file; empty: that of the model's folder, from
/// chat_template.jinja or tokenizer_config.json. Of several, as in transformers, the one called
/// "tool_use" is for conversations with tools, "default" for all others. Null if the folder has
/// none. Throws Error(kIo, kFormat).
std::shared_ptr<const ChatTemplate> load_chat_template(const std::string& wanted,
                                                       const std::string& folder,
                                                       const Tokenizer& tokenizer, std::time_t now);

/// The clock of templates when a model is trained, so that a resumed run has the same tokens:
/// noon of July 26, 2024 (UTC), a date that the templates of Llama 3 contain.
inline constexpr std::time_t kTrainingTime = 1721995200;

/// The ids of a conversation and which of them the loss is on.
struct TokenizedChat {
  std::vector<int64_t> ids;
  std::vector<bool> is_trained;
};

/// Tokenizes the text of a conversation. A token is trained if a byte of it lies in a part that the
/// assistant wrote. No special tokens are added; those that the text spells are recognized.
TokenizedChat tokenize_chat(const Tokenizer& tokenizer, const ChatText& chat);

/// Tokenizes a prompt and its completion as one text without a template, with the tokenizer's
/// begin token if it adds one, and its end token. The completion and the end token are trained.
TokenizedChat tokenize_completion(const Tokenizer& tokenizer, const std::string& prompt,
                                  const std::string& completion);

}  // namespace cleave::inline chat
