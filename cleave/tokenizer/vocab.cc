#include "cleave/tokenizer/vocab.h"

#include <algorithm>

#include "cleave/base/hash.h"
#include "cleave/base/mutant.h"

namespace cleave {

Vocab Vocab::from_json(const Json& object) {
  Vocab vocab;
  const size_t count = object.size();
  if (!object.is(Json::Type::kObject) || count == 0) {
    object.fail("expected an object of tokens and their ids");
  }
  vocab.tokens_.reserve(count);
  vocab.ids_.reserve(count);
  int64_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    vocab.tokens_.push_back(object.key(i));
    vocab.ids_.push_back(object.at(i).as_int(0, kMaxTokenId));
    largest = std::max(largest, vocab.ids_.back());
  }
  vocab.entry_of_id_.assign(static_cast<size_t>(largest) + 1, 0);
  for (size_t i = 0; i < count; ++i) {
    uint32_t& entry = vocab.entry_of_id_[static_cast<size_t>(vocab.ids_[i])];
    if (entry != 0 && !mutant_enabled("vocab.doubled_ids")) {
      object.at(i).fail(str("the token \"", vocab.tokens_[entry - 1], "\" has the same id"));
    }
    entry = static_cast<uint32_t>(i + 1);
  }
  vocab.build_index();
  return vocab;
}

Vocab Vocab::from_list(std::vector<std::string> tokens) {
  Vocab vocab;
  vocab.tokens_ = std::move(tokens);
  for (size_t i = 0; i < vocab.tokens_.size(); ++i) {
    vocab.ids_.push_back(static_cast<int64_t>(i));
    vocab.entry_of_id_.push_back(static_cast<uint32_t>(i + 1));
  }
  vocab.build_index();
  return vocab;
}

void Vocab::build_index() {
  size_t slots = 16;
  while (slots < tokens_.size() * 2) slots *= 2;
  slots_.assign(slots, 0);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    slots_[slot_of(tokens_[i])] = static_cast<uint32_t>(i + 1);
  }
}

size_t Vocab::slot_of(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash_bytes(token) & mask;
  while (slots_[at] != 0 && tokens_[slots_[at] - 1] != token) at = (at + 1) & mask;
  return at;
}

std::optional<int64_t> Vocab::find(std::string_view token) const {
  const uint32_t entry = slots_[slot_of(token)];
  if (entry == 0) return std::nullopt;
  return ids_[entry - 1];
}

std::optional<std::string_view> Vocab::token(int64_t id) const {
  if (id < 0 || id >= end_id() || entry_of_id_[static_cast<size_t>(id)] == 0) return std::nullopt;
  return tokens_[entry_of_id_[static_cast<size_t>(id)] - 1];
}

}  // namespace cleave
