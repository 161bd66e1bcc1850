#include "cleave/tokenizer/vocab.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cleave/base/hash.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/unicode.h"

namespace cleave::inline tokenizer {
namespace {

/// Byte offset of the last character before `end`; `end` if there is none.
size_t previous_character(std::string_view text, size_t end) {
  size_t at = end;
  for (size_t back = 1; back <= 4 && back <= end; ++back) {
    at = end - back;
    if ((static_cast<uint8_t>(text[at]) & 0xC0) != 0x80) break;
  }
  return at;
}

bool word_ends_at(std::string_view text, size_t end) {
  const size_t at = previous_character(text, end);
  return at < end && is_word_character(next_code_point(text, at).value);
}

bool word_begins_at(std::string_view text, size_t at) {
  return at < text.size() && is_word_character(next_code_point(text, at).value);
}

size_t space_before(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t at = previous_character(text, end);
    if (!is_white_space(next_code_point(text, at).value)) break;
    end = at;
  }
  return end;
}

size_t space_after(std::string_view text, size_t at) {
  while (at < text.size()) {
    const CodePoint point = next_code_point(text, at);
    if (!is_white_space(point.value)) break;
    at += point.bytes;
  }
  return at;
}

/// Byte range of a text.
struct Place {
  size_t begin = 0;
  size_t end = 0;
};

/// The range of a token found at `found`, including the white space that it strips; nullopt if it
/// must be a single word and is not.
std::optional<Place> place_of(const AddedToken& token, std::string_view text, const Place& found) {
  const bool alone = !word_ends_at(text, found.begin) && !word_begins_at(text, found.end);
  if (token.single_word && !alone) return std::nullopt;
  return Place{.begin = token.lstrip ? space_before(text, found.begin) : found.begin,
               .end = token.rstrip ? space_after(text, found.end) : found.end};
}

}  // namespace

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
  std::optional<Match> best;
  for_each_prefix(text, [&best](const Match& match) { best = match; });
  return best;
}

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
    if (entry != 0) {
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

std::vector<AddedToken> AddedTokens::from_json(const Json& list, const Vocab& vocab) {
  if (!list.is(Json::Type::kArray)) list.fail("expected an array of tokens");
  std::vector<AddedToken> tokens;
  std::set<int64_t> ids;
  std::set<std::string> contents;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json json = list.at(i);
    AddedToken token{.id = json.at("id").as_int(0, kMaxTokenId),
                     .content = json.at("content").as_string(),
                     .special = json.bool_or("special", false),
                     .normalized = json.bool_or("normalized", true),
                     .single_word = json.bool_or("single_word", false),
                     .lstrip = json.bool_or("lstrip", false),
                     .rstrip = json.bool_or("rstrip", false)};
    if (token.content.size() > kMaxContentBytes) {
      json.at("content").fail(str("expected at most ", kMaxContentBytes, " bytes"));
    }
    if (!ids.insert(token.id).second) json.at("id").fail("another added token has the same id");
    if (!contents.insert(token.content).second) {
      json.at("content").fail("another added token has the same content");
    }
    const std::optional<std::string_view> known = vocab.token(token.id);
    if (known && *known != token.content) {
      json.at("id").fail(str("the vocabulary assigns this id to \"", known->substr(0, 60), "\""));
    }
    if (!known && vocab.find(token.content)) {
      json.at("id").fail(
          str("the vocabulary assigns this token the id ", *vocab.find(token.content)));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer)
    : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    AddedToken& token = tokens_[i];
    const bool rewritten = token.normalized && normalizer != nullptr;
    token.text = rewritten ? normalizer->normalize(token.content) : token.content;
    by_id_.emplace(token.id, i);
    by_content_.emplace(token.content, i);
    const auto number = static_cast<int64_t>(i);
    (token.normalized ? normalized_ : original_).add(token.text, number);
  }
}

void AddedTokens::split(std::string_view text, const Search& search, const PartSink& sink) const {
  const TokenTrie& trie = search.normalized ? normalized_ : original_;
  size_t last = 0;  // end of the text already passed to the sink
  for (size_t at = 0; !trie.empty() && at < text.size();) {
    const auto match = trie.begins_with(text[at]) ? trie.longest(text.substr(at)) : std::nullopt;
    if (!match) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(match->value)];
    const auto place = place_of(token, text, {at, at + match->length});
    at += match->length;
    if (!place || (token.special && !search.parse_special)) continue;
    // As in `tokenizers`, the white space that a token strips may hold other tokens.
    const size_t begin = token.lstrip ? std::max(place->begin, last) : place->begin;
    if (last < begin) sink(last, begin, std::nullopt);
    if (begin < place->end) sink(begin, place->end, token.id);
    last = place->end;
  }
  if (last < text.size()) sink(last, text.size(), std::nullopt);
}

const AddedToken* AddedTokens::find(int64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

std::optional<int64_t> AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  if (found == by_content_.end()) return std::nullopt;
  return tokens_[found->second].id;
}

int64_t vocab_size_of(const Vocab& vocab, const std::vector<AddedToken>& added) {
  int64_t size = vocab.end_id();
  for (const AddedToken& token : added) size = std::max(size, token.id + 1);
  return size;
}

}  // namespace cleave::inline tokenizer
