#include "cleave/tokenizer/added_tokens.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cleave/text/utf8.h"
#include "cleave/tokenizer/unicode.h"

namespace cleave {
namespace {

constexpr size_t kLongestContent = 1024;  // bytes: bounds the search at every place of a text

/// Byte where the last character before `end` begins; `end` when there is none.
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

/// Bytes of a text.
struct Place {
  size_t begin = 0;
  size_t end = 0;
};

/// What a token found at `found` takes, with the white space around it that it asks for; nothing
/// where it must stand alone and does not.
std::optional<Place> place_of(const AddedToken& token, std::string_view text, const Place& found) {
  const bool alone = !word_ends_at(text, found.begin) && !word_begins_at(text, found.end);
  if (token.single_word && !alone) return std::nullopt;
  return Place{.begin = token.lstrip ? space_before(text, found.begin) : found.begin,
               .end = token.rstrip ? space_after(text, found.end) : found.end};
}

}  // namespace

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
    if (token.content.size() > kLongestContent) {
      json.at("content").fail(str("expected at most ", kLongestContent, " bytes"));
    }
    if (!ids.insert(token.id).second) json.at("id").fail("another added token has the same id");
    if (!contents.insert(token.content).second) {
      json.at("content").fail("another added token has the same content");
    }
    const std::optional<std::string_view> known = vocab.token(token.id);
    if (known && *known != token.content) {
      json.at("id").fail(str("the vocabulary gives this id to \"", known->substr(0, 60), "\""));
    }
    if (!known && vocab.find(token.content)) {
      json.at("id").fail(
          str("the vocabulary gives this token the id ", *vocab.find(token.content)));
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
  size_t last = 0;  // end of what the sink has got
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
    const size_t begin = std::max(place->begin, last);
    if (last < begin) sink(last, begin, std::nullopt);
    sink(begin, place->end, token.id);
    at = last = place->end;
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

}  // namespace cleave
