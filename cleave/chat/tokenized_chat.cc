#include <algorithm>
#include <span>

#include "cleave/chat/chat_template.h"

namespace cleave::inline chat {
namespace {

constexpr EncodeOptions kPlain{.add_special = false};

/// Number of tokens of `text` that end before byte `at`, or with `counts_cut` that begin before it.
/// The text up to `at` usually has the same tokens. If it does not, the texts of the tokens that
/// differ show where these lie.
size_t tokens_before(const Tokenizer& tokenizer, const std::string& text,
                     const std::vector<int64_t>& ids, size_t at, bool counts_cut) {
  if (at == 0) return 0;
  if (at >= text.size()) return ids.size();
  const std::string begin = text.substr(0, at);
  const std::vector<int64_t> before = tokenizer.encode(begin, kPlain);
  auto count = static_cast<size_t>(
      std::mismatch(before.begin(), before.end(), ids.begin(), ids.end()).first - before.begin());
  const bool is_before_special = count < ids.size() && tokenizer.is_special(ids[count]);
  const bool ends_in_space = begin.back() == ' ' && !is_before_special;
  if (count == before.size() && !ends_in_space) return count;
  const auto bytes = [&tokenizer](const std::vector<int64_t>& all, size_t first) {
    return static_cast<int64_t>(tokenizer.decode(std::span(all).first(first)).size());
  };
  // Distance of the end of each token from `at`. A tokenizer of SentencePiece may drop the spaces
  // at the end of a text, so that another letter follows them here; before a special token it
  // drops them too.
  int64_t shift = -bytes(before, before.size());
  if (ends_in_space) {
    const std::vector<int64_t> with_letter = tokenizer.encode(begin + "x", kPlain);
    shift = 1 - bytes(with_letter, with_letter.size());
  }
  for (; count < ids.size(); ++count) {
    if (counts_cut ? bytes(ids, count) + shift >= 0 : bytes(ids, count + 1) + shift > 0) break;
  }
  return count;
}

}  // namespace

TokenizedChat tokenize_chat(const Tokenizer& tokenizer, const ChatText& chat) {
  TokenizedChat out{.ids = tokenizer.encode(chat.text, kPlain), .is_trained = {}};
  out.is_trained.resize(out.ids.size());
  for (const auto& [begin, end] : chat.assistant) {
    if (begin == end) continue;
    const size_t first = tokens_before(tokenizer, chat.text, out.ids, begin, false);
    const size_t last = tokens_before(tokenizer, chat.text, out.ids, end, true);
    for (size_t i = first; i < last; ++i) out.is_trained[i] = true;
  }
  return out;
}

TokenizedChat tokenize_completion(const Tokenizer& tokenizer, const std::string& prompt,
                                  const std::string& completion) {
  const std::string text = prompt + completion;
  TokenizedChat body = tokenize_chat(tokenizer, {text, {{prompt.size(), text.size()}}});
  TokenizedChat out;
  for (const TemplateStep& step : tokenizer.sequence_template().single) {
    if (step.what != TemplateStep::What::kToken) break;
    out.ids.push_back(step.id);
    out.is_trained.push_back(false);
  }
  out.ids.insert(out.ids.end(), body.ids.begin(), body.ids.end());
  out.is_trained.insert(out.is_trained.end(), body.is_trained.begin(), body.is_trained.end());
  const std::optional<int64_t> end = tokenizer.special().eos;
  if (end && (out.ids.empty() || out.ids.back() != *end)) {
    out.ids.push_back(*end);
    out.is_trained.push_back(true);
  }
  return out;
}

}  // namespace cleave::inline chat
