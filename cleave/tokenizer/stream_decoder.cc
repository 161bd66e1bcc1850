#include "cleave/tokenizer/stream_decoder.h"

#include <algorithm>
#include <cctype>

namespace cleave {
namespace {

constexpr std::string_view kReplacementBytes = "\xEF\xBF\xBD";

/// Whether the token is spelled as a byte: "<0xE4>".
bool is_byte_token(const Tokenizer& tokenizer, int64_t id) {
  const std::optional<std::string> token = tokenizer.token(id);
  return token && token->size() == 6 && token->starts_with("<0x") && token->ends_with('>') &&
         std::isxdigit(static_cast<uint8_t>((*token)[3])) != 0 &&
         std::isxdigit(static_cast<uint8_t>((*token)[4])) != 0;
}

/// Bytes that both begin with, up to the end of a character.
size_t common_prefix(const std::string& a, const std::string& b) {
  size_t same = 0;
  while (same < a.size() && same < b.size() && a[same] == b[same]) ++same;
  while (same > 0 && same < b.size() && (static_cast<uint8_t>(b[same]) & 0xC0) == 0x80) --same;
  return same;
}

}  // namespace

/// What `text`, of the whole window, adds to what was shown; its first `settled` bytes stay,
/// whatever comes.
std::string StreamDecoder::take(const std::string& text, size_t settled) {
  const size_t same = common_prefix(shown_, text);
  settled = std::max(settled, same);
  std::string added = text.substr(same, settled - same);
  shown_ = text.substr(0, settled);
  if (settled < text.size() || added.empty()) return added;
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(num_settled_));
  num_settled_ = window_.size();
  shown_ = tokenizer_->decode(window_, skip_special_);
  return added;
}

void StreamDecoder::skip(std::span<const int64_t> ids) {
  window_.assign(ids.begin(), ids.end());
  num_settled_ = window_.size();
  shown_ = tokenizer_->decode(window_, skip_special_);
}

std::string StreamDecoder::push(int64_t id) {
  window_.push_back(id);
  const bool is_left_out = skip_special_ && tokenizer_->is_special(id);
  if (!is_left_out) in_byte_run_ = is_byte_token(*tokenizer_, id);
  const std::string text = tokenizer_->decode(window_, skip_special_);
  if (in_byte_run_ && text.find(kReplacementBytes, common_prefix(shown_, text)) != text.npos) {
    return "";
  }
  // The last U+FFFD may be the first bytes of a character.
  const bool may_change = text.ends_with(kReplacementBytes);
  return take(text, text.size() - (may_change ? kReplacementBytes.size() : 0));
}

std::string StreamDecoder::finish(std::span<const int64_t> ids) {
  window_.insert(window_.end(), ids.begin(), ids.end());
  const std::string text = tokenizer_->decode(window_, skip_special_);
  return take(text, text.size());
}

}  // namespace cleave
