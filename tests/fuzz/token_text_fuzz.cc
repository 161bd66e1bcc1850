// Random bytes as text: BPE, WordPiece and Unigram give the same ids as slow implementations of
// their definitions; the byte tokenizer's tokens decode to the same bytes.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/text/utf8.h"
#include "cleave/tokenizer/token_model.h"
#include "cleave/tokenizer/tokenizer.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::Vocab;
using cleave::fuzz::require;
using Ids = std::vector<int64_t>;
using Words = std::vector<std::string>;

/// Overlapping merges of the letters a to d, in an order in which ranks matter, and one of two-byte
/// characters.
const std::vector<std::pair<std::string, std::string>> kMerges{{"b", "a"},
                                                               {"a", "b"},
                                                               {"a", "a"},
                                                               {"aa", "a"},
                                                               {"ab", "ab"},
                                                               {"c", "d"},
                                                               {"ba", "cd"},
                                                               {"d", "c"},
                                                               {"aa", "aa"},
                                                               {"abab", "c"},
                                                               {"\xC3\xA9", "\xC3\xA9"},
                                                               {"b", "b"},
                                                               {"bb", "a"},
                                                               {"cd", "cd"}};

Words bpe_tokens() {
  Words tokens{"<unk>", "a", "b", "c", "d", "\xC3\xA9"};
  for (const auto& [left, right] : kMerges) tokens.push_back(left + right);
  return tokens;
}

int64_t id_of(const Words& tokens, const std::string& token) {
  const auto at = std::find(tokens.begin(), tokens.end(), token);
  return at == tokens.end() ? -1 : at - tokens.begin();
}

Words characters_of(std::string_view text) {
  Words characters;
  for (size_t at = 0; at < text.size();) {
    const auto point = cleave::next_code_point(text, at);
    characters.emplace_back(text.substr(at, point.bytes));
    at += point.bytes;
  }
  return characters;
}

/// The definition: repeatedly merges the adjacent pair of the lowest rank, the leftmost one first.
Ids slow_bpe(std::string_view text, const Words& tokens) {
  using Pair = std::pair<int64_t, int64_t>;
  std::map<Pair, size_t> ranks;
  for (size_t rank = 0; rank < kMerges.size(); ++rank) {
    const auto& [left, right] = kMerges[rank];
    ranks[{id_of(tokens, left), id_of(tokens, right)}] = rank;
  }
  Ids ids;
  for (const std::string& c : characters_of(text))
    ids.push_back(std::max<int64_t>(id_of(tokens, c), 0));
  while (true) {
    size_t best = kMerges.size(), place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      place = i;
    }
    if (best == kMerges.size()) return ids;
    ids[place] = id_of(tokens, kMerges[best].first + kMerges[best].second);
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

const Words kPieces{"[UNK]", "a", "ab",       "abc",        "##c", "##cd", "##d", "##",
                    "##a",   "d", "\xC3\xA9", "##\xC3\xA9", "cd",  "b",    "##b", "##\xC3\xA9z"};
constexpr int64_t kMostCharacters = 12;

/// The definition: repeatedly takes the longest token from the left; all or nothing.
Ids slow_word_piece(std::string_view word) {
  const Words characters = characters_of(word);
  if (static_cast<int64_t>(characters.size()) > kMostCharacters) return {0};
  Ids ids;
  for (size_t begin = 0; begin < characters.size();) {
    size_t end = characters.size();
    int64_t id = -1;
    for (; end > begin; --end) {
      std::string piece = begin > 0 ? "##" : "";
      for (size_t i = begin; i < end; ++i) piece += characters[i];
      id = id_of(kPieces, piece);
      if (id >= 0) break;
    }
    if (id < 0) return {0};
    ids.push_back(id);
    begin = end;
  }
  return ids;
}

/// Tokens of Unigram, at most six characters long. Sums of their scores are exact, and often equal.
const Words kScored{"<unk>", "a",  "b",    "ab", "aba",      "ba",        "c",     "cd",
                    "bcd",   "aa", "aaaa", "ef", "\xC3\xA9", "\xC3\xA9z", "<0x65>"};
const std::vector<double> kScores{0, -2, -3, -4, -5, -5, -2.5, -2, -8, -4, -8, -9, -4, -6, -10};
constexpr double kUnknown = -10 - 10;
constexpr size_t kMostInToken = 6;

/// The definition: of all ways to split the first `end` characters, the one with the highest sum;
/// of equal sums the one whose last part is longest. The parts before each of these are in `best`.
std::pair<double, Words> best_split(const Words& characters, size_t end,
                                    const std::vector<std::pair<double, Words>>& best) {
  std::pair<double, Words> found{-1e9, {}};
  for (size_t begin = end - std::min(end, kMostInToken); begin < end; ++begin) {
    std::string part;
    for (size_t i = begin; i < end; ++i) part += characters[i];
    const int64_t id = id_of(kScored, part);
    if (id < 0 && end - begin > 1) continue;
    const double sum = best[begin].first + (id < 0 ? kUnknown : kScores[static_cast<size_t>(id)]);
    if (sum <= found.first) continue;
    found = {sum, best[begin].second};
    found.second.push_back(part);
  }
  return found;
}

/// Adjacent unknown parts are one; its bytes become tokens if all of them can.
Ids slow_unigram(std::string_view text) {
  const Words characters = characters_of(text);
  std::vector<std::pair<double, Words>> best{{0, {}}};
  for (size_t end = 1; end <= characters.size(); ++end) {
    best.push_back(best_split(characters, end, best));
  }
  Words parts;
  bool after_unknown = false;
  for (const std::string& part : best.back().second) {
    const bool unknown = id_of(kScored, part) <= 0;
    if (unknown && after_unknown) {
      parts.back() += part;
    } else {
      parts.push_back(part);
    }
    after_unknown = unknown;
  }
  Ids ids;
  for (const std::string& part : parts) {
    const int64_t id = id_of(kScored, part);
    if (id < 0 && part.find_first_not_of('e') == std::string::npos) {
      ids.insert(ids.end(), part.size(), id_of(kScored, "<0x65>"));
    } else {
      ids.push_back(std::max<int64_t>(id, 0));
    }
  }
  return ids;
}

void check_bpe(std::string_view text) {
  static const Words tokens = bpe_tokens();
  static const cleave::Bpe* const bpe = [] {
    auto* made = new cleave::Bpe(Vocab::from_list(bpe_tokens()), {.unk = 0});
    uint32_t rank = 0;
    for (const auto& [left, right] : kMerges) require(made->add_merge(left, right, rank++));
    return made;
  }();
  Ids ids;
  cleave::PieceCache cache;
  bpe->tokenize(text, ids, cache);
  require(ids == slow_bpe(text, tokens));
}

void check_word_piece(std::string_view word) {
  static const cleave::WordPiece model(Vocab::from_list(kPieces),
                                       {.unk = 0, .max_characters = kMostCharacters});
  Ids ids;
  cleave::PieceCache cache;
  model.tokenize(word, ids, cache);
  require(ids == (word.empty() ? Ids{} : slow_word_piece(word)));
}

void check_unigram(std::string_view text) {
  static const cleave::Unigram model(Vocab::from_list(kScored), kScores,
                                     {.unk = 0, .byte_fallback = true});
  Ids ids;
  cleave::PieceCache cache;
  model.tokenize(text, ids, cache);
  require(ids == slow_unigram(text));
}

void check_bytes(std::string_view text) {
  static const auto bytes = cleave::byte_tokenizer();
  const Ids ids = bytes->encode(text, {.parse_special = false});
  require(ids.size() == text.size());
  require(bytes->decode(ids) == cleave::replace_bad_utf8(text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 512) return 0;  // the slow implementations are quadratic
  const std::string text = cleave::replace_bad_utf8(cleave::fuzz::text_of(data, size));
  check_bpe(text);
  check_word_piece(text);
  check_unigram(text);
  check_bytes(cleave::fuzz::text_of(data, size));
  return 0;
}
