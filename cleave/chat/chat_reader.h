#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/chat/chat_template.h"
#include "cleave/text/json.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline chat {

/// How the rows of a file of conversations are read.
struct ChatOptions {
  std::shared_ptr<const ChatTemplate> chat_template{};  ///< null: only prompts with completions
  bool train_on_all = false;  ///< the loss is on all tokens, not only on the assistant's
};

/// Whether the files hold conversations: JSONL, whatever its name, whose first row has `messages`,
/// `conversations`, `prompt` and `completion`, or `instruction` and `output`. Throws Error(kUsage)
/// if only some do.
bool holds_chats(const std::vector<std::string>& files);

/// The messages of a JSON array of {"role": ..., "content": ...}, or of ShareGPT's
/// {"from": "human", "value": ...}. Throws Error(kFormat) for a row of another form, an unknown
/// role, a "weight" other than 0 and 1, a "function_call", or no messages.
ChatMessages read_messages(const Json& list);

/// The messages of a row, which may have the text of a system message beside them ("system"): it
/// comes first, unless they begin with another one.
ChatMessages with_system(const Json& row, ChatMessages messages);

/// What a row gives its template: "tools", function descriptions as a list, or as its JSON in a
/// text, which tables of columns have; and the members of "chat_template_kwargs", as
/// {"enable_thinking": false}. Throws Error(kFormat) for values of another type.
TemplateVariables variables_of(const Json& row);

/// Reads one row of a file of conversations and tokenizes it:
///
///   {"messages": [{"role": "user", "content": "..."}, ...]}   content: a text, or a list of texts
///   {"conversations": [{"from": "human", "value": "..."}, ...]}   or messages
///   {"prompt": "...", "completion": "..."}                    both texts, or both lists of
///   messages
///   {"instruction": "...", "input": "...", "output": "..."}   input may be missing
///
/// Each may have "system", "tools" and "chat_template_kwargs": see with_system() and
/// variables_of(). The answer of a message with "weight": 0 is not trained. With a template, the
/// third and fourth are a user message (instruction and input with a blank line between them) and
/// the answer of the assistant; of a prompt that is a list, no answer is trained. Without a
/// template, they are one text.
class ChatReader {
 public:
  ChatReader(std::shared_ptr<const Tokenizer> tokenizer, ChatOptions options);

  /// `place` is "FILE:LINE". Throws Error(kFormat) with it for a row of another kind than the
  /// first, an unknown role, no messages, or no text of the assistant.
  TokenizedChat read(const Json& row, const std::string& place);

 private:
  [[nodiscard]] TokenizedChat tokenized(const Json& row, const std::string& kind) const;
  [[nodiscard]] TokenizedChat rendered(const Json& row, const std::string& kind) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatOptions options_;
  std::string kind_, first_place_;
};

}  // namespace cleave::inline chat
