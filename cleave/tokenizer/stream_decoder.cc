#include "cleave/tokenizer/stream_decoder.h"

#include "cleave/text/utf8.h"

namespace cleave {
namespace {

constexpr std::string_view kReplacementBytes = "\xEF\xBF\xBD";
constexpr size_t kMostHeld = 32;  // ids: bytes that never become a character are shown after that

}  // namespace

std::string StreamDecoder::shown_text() const {
  return tokenizer_->decode(std::span(window_).first(num_shown_), skip_special_);
}

/// What `text`, of the whole window, adds to what was shown; the window moves on.
std::string StreamDecoder::take(const std::string& text) {
  const std::string before = shown_text();
  size_t same = 0;
  while (same < before.size() && same < text.size() && before[same] == text[same]) ++same;
  while (same > 0 && same < text.size() && (static_cast<uint8_t>(text[same]) & 0xC0) == 0x80) {
    --same;
  }
  if (text.size() > same) {
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(num_shown_));
  }
  num_shown_ = window_.size();
  return text.substr(same);
}

void StreamDecoder::skip(std::span<const int64_t> ids) {
  window_.assign(ids.begin(), ids.end());
  num_shown_ = window_.size();
}

std::string StreamDecoder::push(int64_t id) {
  window_.push_back(id);
  const std::string text = tokenizer_->decode(window_, skip_special_);
  const bool unfinished = text.ends_with(kReplacementBytes);
  if (unfinished && window_.size() - num_shown_ < kMostHeld) return "";
  return take(text);
}

std::string StreamDecoder::finish() {
  return take(tokenizer_->decode(window_, skip_special_));
}

}  // namespace cleave
