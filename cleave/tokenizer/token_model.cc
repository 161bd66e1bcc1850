#include "cleave/tokenizer/token_model.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <utility>

#include "cleave/text/utf8.h"

namespace cleave::inline tokenizer {
namespace {

constexpr uint64_t kNoMerge = UINT64_MAX;
constexpr size_t kMaxScanned = 32;  // symbols; for longer pieces a heap is faster than scans

int64_t id_of(uint64_t merge) {
  return static_cast<int64_t>(merge & 0xFFFFFFFF);
}

/// A possible merge. The heap returns the lowest rank first, then the leftmost.
struct Candidate {
  uint64_t merge;
  uint32_t at;
  bool operator>(const Candidate& other) const {
    const auto rank = merge >> 32;
    const auto other_rank = other.merge >> 32;
    return rank != other_rank ? rank > other_rank : at > other.at;
  }
};

/// Both parts of "left right" or ["left", "right"].
std::pair<std::string, std::string> read_merge(const Json& merge) {
  if (merge.is(Json::Type::kArray)) {
    if (merge.size() != 2) merge.fail("expected two tokens");
    return {merge.at(size_t{0}).as_string(), merge.at(size_t{1}).as_string()};
  }
  const std::string& text = merge.as_string();
  const size_t space = text.find(' ');
  const bool two = space != std::string::npos && text.find(' ', space + 1) == std::string::npos;
  if (!two) merge.fail("expected two tokens with one space between them");
  return {text.substr(0, space), text.substr(space + 1)};
}

BpeOptions read_options(const Json& model, const Vocab& vocab) {
  BpeOptions options{.unk = {},
                     .continuing_prefix = model.string_or("continuing_subword_prefix", ""),
                     .end_suffix = model.string_or("end_of_word_suffix", ""),
                     .fuse_unk = model.bool_or("fuse_unk", false),
                     .byte_fallback = model.bool_or("byte_fallback", false),
                     .ignore_merges = model.bool_or("ignore_merges", false)};
  if (model.has("unk_token")) {
    options.unk = vocab.find(model.at("unk_token").as_string());
    if (!options.unk) model.at("unk_token").fail("expected a token of the vocabulary");
  }
  if (model.number_or("dropout", 0) != 0) {
    model.at("dropout").fail("expected null or 0; BPE dropout is not supported");
  }
  return options;
}

constexpr int64_t kMaxWordCharacters = 1000;  // longer words would make encoding slow

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += next_code_point(text, at).bytes;
  return count;
}

}  // namespace

bool append_byte_tokens(const Vocab& vocab, std::string_view text, std::vector<int64_t>& ids) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  const size_t before = ids.size();
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const std::array<char, 6> spelled{'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
    const std::optional<int64_t> id = vocab.find({spelled.data(), spelled.size()});
    if (!id) {
      ids.resize(before);
      return false;
    }
    ids.push_back(*id);
  }
  return true;
}

Bpe::Bpe(Vocab vocab, BpeOptions options)
    : vocab_(std::move(vocab)), options_(std::move(options)) {}

std::unique_ptr<Bpe> Bpe::from_json(const Json& model) {
  Vocab vocab = Vocab::from_json(model.at("vocab"));
  BpeOptions options = read_options(model, vocab);
  auto bpe = std::make_unique<Bpe>(std::move(vocab), std::move(options));
  const Json merges = model.at("merges");
  if (!merges.is(Json::Type::kArray)) merges.fail("expected an array of merges");
  bpe->reserve_merges(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json merge = merges.at(i);
    const auto [left, right] = read_merge(merge);
    if (!bpe->add_merge(left, right, static_cast<uint32_t>(i))) {
      merge.fail("expected both parts and their concatenation in the vocabulary");
    }
  }
  return bpe;
}

bool Bpe::add_merge(std::string_view left, std::string_view right, uint32_t rank) {
  const std::string& prefix = options_.continuing_prefix;
  const std::string_view rest = right.starts_with(prefix) ? right.substr(prefix.size()) : right;
  const std::optional<int64_t> left_id = vocab_.find(left);
  const std::optional<int64_t> right_id = vocab_.find(right);
  std::string joined(left);
  joined += rest;
  const std::optional<int64_t> joined_id = vocab_.find(joined);
  if (!left_id || !right_id || !joined_id) return false;
  const uint64_t pair = (static_cast<uint64_t>(*left_id) << 32) | static_cast<uint64_t>(*right_id);
  merges_.set(pair, (uint64_t{rank} << 32) | static_cast<uint64_t>(*joined_id));
  return true;
}

uint64_t Bpe::merge_of(int64_t left, int64_t right) const {
  const uint64_t pair = (static_cast<uint64_t>(left) << 32) | static_cast<uint64_t>(right);
  return merges_.find(pair).value_or(kNoMerge);
}

/// The token of the character at `at`, with the prefix or suffix for its position in the piece.
std::optional<int64_t> Bpe::symbol_at(std::string_view piece, size_t at, size_t bytes) const {
  const std::string_view character = piece.substr(at, bytes);
  if (options_.continuing_prefix.empty() && options_.end_suffix.empty()) {
    return vocab_.find(character);
  }
  std::string spelled = at > 0 ? options_.continuing_prefix : "";
  spelled += character;
  if (at + bytes == piece.size()) spelled += options_.end_suffix;
  return vocab_.find(spelled);
}

std::vector<int64_t> Bpe::symbols_of(std::string_view piece) const {
  std::vector<int64_t> symbols;
  symbols.reserve(piece.size());
  bool unk_pending = false;  // after an unknown character, with which later ones may fuse
  for (size_t at = 0; at < piece.size();) {
    const size_t bytes = next_code_point(piece, at).bytes;
    if (const std::optional<int64_t> id = symbol_at(piece, at, bytes)) {
      if (unk_pending) symbols.push_back(*options_.unk);
      unk_pending = false;
      symbols.push_back(*id);
    } else if (options_.byte_fallback &&
               append_byte_tokens(vocab_, piece.substr(at, bytes), symbols)) {
    } else if (options_.unk) {
      if (unk_pending && !options_.fuse_unk) symbols.push_back(*options_.unk);
      unk_pending = true;
    }
    at += bytes;
  }
  if (unk_pending) symbols.push_back(*options_.unk);
  return symbols;
}

void Bpe::merge_short(std::vector<int64_t>& symbols) const {
  std::array<uint64_t, kMaxScanned> merges{};  // of each symbol with the next one
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merge_of(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if ((merges[i] >> 32) < (merges[best] >> 32)) best = i;
    }
    if (merges[best] == kNoMerge) break;
    symbols[best] = id_of(merges[best]);
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(count),
              symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(merges.begin() + best + 1, merges.begin() + count - 1, merges.begin() + best);
    --count;
    if (best > 0) merges[best - 1] = merge_of(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = merge_of(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

/// Symbols in a linked list, and a heap of merges; outdated merges are skipped when popped.
void Bpe::merge_long(std::vector<int64_t>& symbols) const {
  const size_t count = symbols.size();
  std::vector<uint32_t> next(count);
  std::vector<uint32_t> previous(count);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto propose = [&](size_t at) {
    if (next[at] >= count) return;
    const uint64_t merge = merge_of(symbols[at], symbols[next[at]]);
    if (merge != kNoMerge) heap.push({merge, static_cast<uint32_t>(at)});
  };
  for (size_t i = 0; i < count; ++i) {
    next[i] = static_cast<uint32_t>(i + 1);
    previous[i] = static_cast<uint32_t>(i) - 1;
  }
  for (size_t i = 0; i < count; ++i) propose(i);
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    if (symbols[best.at] < 0 || next[best.at] >= count) continue;
    const uint32_t right = next[best.at];
    const uint64_t now = merge_of(symbols[best.at], symbols[right]);
    if (now == kNoMerge || id_of(now) != id_of(best.merge)) continue;
    symbols[best.at] = id_of(now);
    symbols[right] = -1;
    next[best.at] = next[right];
    if (next[right] < count) previous[next[right]] = best.at;
    propose(best.at);
    if (best.at > 0) propose(previous[best.at]);
  }
  std::erase(symbols, -1);
}

void Bpe::tokenize(std::string_view piece, std::vector<int64_t>& ids, PieceCache& cache) const {
  if (options_.ignore_merges) {
    if (const std::optional<int64_t> id = vocab_.find(piece)) return ids.push_back(*id);
  }
  cache.append(piece, ids, [this](std::string_view text) {
    std::vector<int64_t> symbols = symbols_of(text);
    if (merges_.size() == 0) return symbols;
    if (symbols.size() <= kMaxScanned) {
      merge_short(symbols);
    } else {
      merge_long(symbols);
    }
    return symbols;
  });
}

WordPiece::WordPiece(Vocab vocab, WordPieceOptions options)
    : vocab_(std::move(vocab)), options_(std::move(options)) {
  const std::string& prefix = options_.continuing_prefix;
  for (int64_t id = 0; id < vocab_.end_id(); ++id) {
    const std::optional<std::string_view> token = vocab_.token(id);
    // Where two ids have the same token, the id that find() returns counts.
    if (!token || vocab_.find(*token) != id) continue;
    first_.add(*token, id);
    if (token->starts_with(prefix)) later_.add(token->substr(prefix.size()), id);
  }
}

std::unique_ptr<WordPiece> WordPiece::from_json(const Json& model) {
  Vocab vocab = Vocab::from_json(model.at("vocab"));
  const std::string unk = model.string_or("unk_token", "[UNK]");
  const std::optional<int64_t> unk_id = vocab.find(unk);
  if (!unk_id) model.fail(str("expected the unknown token \"", unk, "\" in the vocabulary"));
  WordPieceOptions options{
      .unk = *unk_id,
      .continuing_prefix = model.string_or("continuing_subword_prefix", "##"),
      .max_characters = model.int_or("max_input_chars_per_word", 100, 1, kMaxWordCharacters)};
  return std::make_unique<WordPiece>(std::move(vocab), std::move(options));
}

void WordPiece::tokenize(std::string_view piece, std::vector<int64_t>& ids,
                         PieceCache& /*cache*/) const {
  if (count_characters(piece) > options_.max_characters) return ids.push_back(options_.unk);
  const size_t before = ids.size();
  for (size_t at = 0; at < piece.size();) {
    const auto match = (at == 0 ? first_ : later_).longest(piece.substr(at));
    if (!match) {
      ids.resize(before);
      return ids.push_back(options_.unk);
    }
    ids.push_back(match->value);
    at += match->length;
  }
}

}  // namespace cleave::inline tokenizer
