#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/chat/chat_template.h"
#include "cleave/text/jsonl.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline chat {

/// A preference: one prompt with a chosen and a rejected answer. The answers are the trained
/// tokens.
struct TokenizedPair {
  TokenizedChat chosen, rejected;
};

/// The rows of a file of preferences. An error about a line that is no JSON says what is expected.
/// Throws Error(kIo).
JsonLines open_pairs(const std::string& file);

/// Whether the answers in the first row of the first file are lists of messages, which need a chat
/// template. Throws Error(kIo, kFormat).
bool holds_message_pairs(const std::vector<std::string>& files);

/// Reads one row of a file of preferences, in the forms that TRL reads, and tokenizes it:
///
///   {"prompt": "...", "chosen": "...", "rejected": "..."}   texts; no template is used
///   {"prompt": [..], "chosen": [..], "rejected": [..]}      lists of messages
///
/// Without a prompt, it is what both answers begin with: the first messages that are equal, or the
/// first characters. A prompt that is a text beside lists of messages is not used. Messages may
/// have "system", "tools" and "chat_template_kwargs" beside them: see with_system() and
/// variables_of().
class PairReader {
 public:
  /// `chat_template` may be null if no row has messages.
  PairReader(std::shared_ptr<const Tokenizer> tokenizer,
             std::shared_ptr<const ChatTemplate> chat_template);

  /// `place` is "FILE:LINE". Throws Error(kFormat) with it for a row of another form than the
  /// first, without a chosen or a rejected answer, with an empty one, or with two equal ones;
  /// Error(kUsage) for messages without a template.
  TokenizedPair read(const Json& row, const std::string& place);

 private:
  [[nodiscard]] TokenizedPair tokenized(const Json& row) const;
  [[nodiscard]] TokenizedPair of_texts(const Json& row) const;
  [[nodiscard]] TokenizedPair of_messages(const Json& row) const;
  [[nodiscard]] TokenizedChat rendered(const ChatMessages& prompt, const ChatMessages& answer,
                                       const TemplateVariables& own) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> chat_template_;
  std::string form_, first_place_;
};

}  // namespace cleave::inline chat
