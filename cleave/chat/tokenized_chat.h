#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/chat/chat_template.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

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

}  // namespace cleave
