#include "cleave/generate/stop_texts.h"

#include <algorithm>

#include "cleave/base/error.h"

namespace cleave::inline generation {
namespace {

constexpr size_t kContext = 8;  // ids before the window: a decoded first piece may lose its space

}  // namespace

StopTexts::StopTexts(std::vector<std::string> texts, std::shared_ptr<const Tokenizer> tokenizer)
    : texts_(std::move(texts)), tokenizer_(std::move(tokenizer)) {
  CLEAVE_CHECK(tokenizer_ != nullptr, Code::kUsage,
               "--stop needs a tokenizer, and the model folder has none; give --tokenizer");
  for (const std::string& text : texts_) {
    CLEAVE_CHECK(!text.empty(), Code::kUsage,
                 "--stop has an empty text; give a text of at least one character");
    window_ = std::max(window_, text.size());
  }
}

bool StopTexts::is_in(std::span<const int64_t> prompt, std::span<const int64_t> ids) const {
  const auto window = ids.last(std::min(ids.size(), window_));
  std::vector<int64_t> all;  // end of the prompt, ids before the window, then the window
  const auto before = ids.first(ids.size() - window.size());
  if (before.size() < kContext) {
    const auto end = prompt.last(std::min(prompt.size(), kContext));
    all.assign(end.begin(), end.end());
  }
  const auto near = before.last(std::min(before.size(), kContext));
  all.insert(all.end(), near.begin(), near.end());
  const std::string context = tokenizer_->decode(all);
  all.insert(all.end(), window.begin(), window.end());
  const std::string text = tokenizer_->decode(all);
  size_t begin = 0;  // where the text of the window begins
  while (begin < context.size() && begin < text.size() && context[begin] == text[begin]) ++begin;
  return std::any_of(texts_.begin(), texts_.end(), [&](const std::string& stop) {
    return text.find(stop, begin) != std::string::npos;
  });
}

}  // namespace cleave::inline generation
