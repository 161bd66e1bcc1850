#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/chat/chat_template.h"

namespace cleave::inline chat {
namespace {

constexpr EncodeOptions kPlain{.add_special = false};

/// Where bytes of a text lie among its tokens.
class TokenPlaces {
 public:
  TokenPlaces(const Tokenizer& tokenizer, const std::string& text, std::span<const int64_t> ids)
      : tokenizer_(tokenizer), text_(text), ids_(ids) {}

  /// Number of tokens that end before byte `at`, or with `counts_cut` that begin before it. The
  /// text up to `at` usually has the same tokens. If it does not, the texts of the tokens that
  /// differ show where these lie. Places in ascending order together take time in proportion to the
  /// text.
  size_t tokens_before(size_t at, bool counts_cut) {
    if (at == 0) return 0;
    if (at >= text_.size()) return ids_.size();
    if (at < known_.byte) known_ = start_ = {};
    if (at == known_.byte) return known_.count;
    // Some tokenizers add a space before a text, so that only one from start_ has the same tokens.
    std::optional<size_t> count = same_tokens(known_, at);
    if (!count && start_.byte < known_.byte) count = same_tokens(start_, at);
    if (!count) return after_mismatch(at, counts_cut);
    known_ = {at, *count};
    move_start();
    return *count;
  }

 private:
  /// A byte of the text, and the number of tokens before it.
  struct Place {
    size_t byte = 0, count = 0;
  };

  [[nodiscard]] std::string text_between(const Place& from, size_t at) const {
    return text_.substr(from.byte, at - from.byte);
  }

  /// Whether `text` ends in a space that its tokens may lack, though those of a longer text that
  /// begins with the same `count` tokens have it. A tokenizer of SentencePiece may drop spaces at
  /// the end of a text; before a special token it drops them too.
  [[nodiscard]] bool may_lack_space(const std::string& text, size_t count) const {
    return text.back() == ' ' && !(count < ids_.size() && tokenizer_.is_special(ids_[count]));
  }

  /// The tokens before `at`, if the text between `from` and `at` has the same alone.
  [[nodiscard]] std::optional<size_t> same_tokens(const Place& from, size_t at) const {
    const std::string text = text_between(from, at);
    const std::vector<int64_t> alone = tokenizer_.encode(text, kPlain);
    const std::span<const int64_t> ids = ids_.subspan(from.count);
    const size_t count = from.count + alone.size();
    const bool is_same =
        alone.size() <= ids.size() && std::equal(alone.begin(), alone.end(), ids.begin());
    return is_same && !may_lack_space(text, count) ? std::optional(count) : std::nullopt;
  }

  /// The tokens before `at` where the text up to there has others.
  [[nodiscard]] size_t after_mismatch(size_t at, bool counts_cut) const {
    const std::string text = text_between(start_, at);
    const std::vector<int64_t> alone = tokenizer_.encode(text, kPlain);
    const std::span<const int64_t> ids = ids_.subspan(start_.count);
    const auto bytes = [this](std::span<const int64_t> all, size_t first) {
      return static_cast<int64_t>(tokenizer_.decode(all.first(first)).size());
    };
    auto count = static_cast<size_t>(
        std::mismatch(alone.begin(), alone.end(), ids.begin(), ids.end()).first - alone.begin());
    // Distance of the end of each token from `at`. Another letter keeps the space before it.
    int64_t shift = -bytes(alone, alone.size());
    if (may_lack_space(text, start_.count + count)) {
      const std::vector<int64_t> with_letter = tokenizer_.encode(text + "x", kPlain);
      shift = 1 - bytes(with_letter, with_letter.size());
    }
    for (; count < ids.size(); ++count) {
      if (counts_cut ? bytes(ids, count) + shift >= 0 : bytes(ids, count + 1) + shift > 0) break;
    }
    return start_.count + count;
  }

  /// Moves the start to a special token that begins or ends at the known place.
  void move_start() {
    const auto [byte, count] = known_;
    if (count < ids_.size() && is_at(byte, ids_[count])) {
      start_ = known_;
    } else if (count > 0) {
      const size_t size = tokenizer_.token(ids_[count - 1]).value_or("").size();
      if (size <= byte && is_at(byte - size, ids_[count - 1])) start_ = {byte - size, count - 1};
    }
  }

  /// Whether the text has a special token at a byte, spelled as in the vocabulary.
  [[nodiscard]] bool is_at(size_t byte, int64_t id) const {
    if (!tokenizer_.is_special(id)) return false;
    const std::string token = tokenizer_.token(id).value_or("");
    return std::string_view(text_).substr(byte).starts_with(token) &&
           tokenizer_.encode(token, kPlain) == std::vector<int64_t>{id};
  }

  const Tokenizer& tokenizer_;
  const std::string& text_;
  std::span<const int64_t> ids_;
  Place known_;  // the last one where the text before it has the same tokens
  Place start_;  // a special token: those after it do not depend on what comes before
};

}  // namespace

TokenizedChat tokenize_chat(const Tokenizer& tokenizer, const ChatText& chat) {
  TokenizedChat out{.ids = tokenizer.encode(chat.text, kPlain), .is_trained = {}};
  out.is_trained.resize(out.ids.size());
  TokenPlaces places(tokenizer, chat.text, out.ids);
  for (const auto& [begin, end] : chat.assistant) {
    if (begin == end) continue;
    const size_t first = places.tokens_before(begin, false);
    const size_t last = places.tokens_before(end, true);
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
