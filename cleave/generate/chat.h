#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/chat/chat_template.h"
#include "cleave/generate/generate.h"
#include "cleave/generate/options.h"

namespace cleave::inline generation {

/// The id that shows the end of a turn, the text `end`: its token, or the special token that it
/// begins with, such as <|end|> of "<|end|>\n<|endoftext|>". nullopt if `end` is empty or begins
/// with no special token.
std::optional<int64_t> stop_id(const Tokenizer& tokenizer, const std::string& end);

/// The text of an answer that comes in parts, up to a text that ends it.
class AnswerText {
 public:
  /// With an empty `end`, no text ends the answer.
  explicit AnswerText(std::string end) : end_(std::move(end)) {}

  /// Adds a part. Returns the text that can be printed now: before the end, and without a tail that
  /// may be the beginning of the end.
  std::string push(const std::string& text);
  /// The text that was held back because it might have begun the end.
  std::string finish();

  /// Whether the end has come.
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  /// All printed text.
  [[nodiscard]] const std::string& text() const { return shown_; }

 private:
  std::string end_, held_, shown_;
  bool has_ended_ = false;
};

/// A conversation, from which the oldest turns are dropped when it no longer fits.
class ChatHistory {
 public:
  ChatHistory(std::shared_ptr<const ChatTemplate> chat_template,
              std::shared_ptr<const Tokenizer> tokenizer)
      : template_(std::move(chat_template)), tokenizer_(std::move(tokenizer)) {}

  void reset();                              ///< forgets all messages but the system message
  void set_system(const std::string& text);  ///< empty: no system message; forgets all others
  void add(const std::string& role, const std::string& text);
  void drop_last();  ///< forgets the last message

  /// The ids of the conversation with the beginning of an answer: at most `limit`, without the
  /// oldest turns where needed; their number is added to `dropped`. The last message always stays,
  /// so the result may be longer. If it is even longer than the model's `positions`, no turn is
  /// dropped.
  [[nodiscard]] Ids prompt(int64_t limit, int64_t positions, int64_t* dropped);

 private:
  ChatMessages system_, turns_;
  std::shared_ptr<const ChatTemplate> template_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

/// What a chat runs on.
struct ChatModel {
  Model& model;
  const Axis& tp;  ///< for run_chat of one rank
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;
  GenerateSettings settings;
  bool prints = true;  ///< whether this rank does
};

/// Reads messages from stdin, one per line, and prints the answers on stdout until the input ends.
/// Lines that begin with / are commands: /reset, /system TEXT. If stdin is a terminal, SIGINT ends
/// the answer that is being made, not the chat. Throws Error(kFormat) if the template refuses a
/// message, Error(kShape) if the model lacks an id of it; at a terminal it prints that instead, and
/// forgets the message.
void run_chat(ChatModel chat);

/// Prints the answer to each message, which is the first of a conversation of its own. Collective.
/// Throws Error(kFormat) if the template fails.
void answer_each(ChatModel chat, const std::vector<std::string>& messages);

}  // namespace cleave::inline generation
