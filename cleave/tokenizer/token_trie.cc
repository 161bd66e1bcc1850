#include "cleave/tokenizer/token_trie.h"

namespace cleave {

void TokenTrie::add(std::string_view text, int64_t value) {
  if (text.empty()) return;
  first_[static_cast<uint8_t>(text.front())] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    const std::optional<uint64_t> next = edges_.find(edge(node, byte));
    if (next) {
      node = static_cast<uint32_t>(*next);
    } else {
      const auto made = static_cast<uint32_t>(values_.size());
      edges_.set(edge(node, byte), made);
      values_.push_back(kNone);
      node = made;
    }
  }
  values_[node] = value;
}

std::optional<TokenTrie::Match> TokenTrie::longest(std::string_view text) const {
  uint32_t node = 0;
  std::optional<Match> best;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::optional<uint64_t> next = edges_.find(edge(node, text[i]));
    if (!next) break;
    node = static_cast<uint32_t>(*next);
    if (values_[node] != kNone) best = {values_[node], i + 1};
  }
  return best;
}

}  // namespace cleave
