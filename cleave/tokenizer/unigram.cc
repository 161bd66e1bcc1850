// Unigram, the model of XLM-RoBERTa, CamemBERT, T5 and others.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "cleave/text/utf8.h"
#include "cleave/tokenizer/token_model.h"

namespace cleave::inline tokenizer {

/// The best way to reach a byte of a piece: its last token and where that begins.
struct Unigram::Node {
  double score = -std::numeric_limits<double>::infinity();
  size_t begin = 0;
  int64_t id = 0;
};

Unigram::Unigram(Vocab vocab, std::vector<double> scores, const UnigramOptions& options)
    : vocab_(std::move(vocab)), scores_(std::move(scores)), options_(options) {
  constexpr double kPenalty = 10;
  unk_score_ = *std::min_element(scores_.begin(), scores_.end()) - kPenalty;
  for (int64_t id = 0; id < vocab_.end_id(); ++id) {
    const std::string_view token = vocab_.token(id).value();
    // Where two ids have the same token, the id that find() returns counts.
    if (vocab_.find(token) == id) tokens_.add(token, id);
  }
}

std::unique_ptr<Unigram> Unigram::from_json(const Json& model) {
  const Json list = model.at("vocab");
  if (!list.is(Json::Type::kArray) || list.size() == 0) {
    list.fail("expected an array of tokens and their scores");
  }
  if (list.size() > static_cast<size_t>(kMaxTokenId)) {
    list.fail(str("expected at most ", kMaxTokenId, " tokens"));
  }
  std::vector<std::string> tokens;
  std::vector<double> scores;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json entry = list.at(i);
    if (!entry.is(Json::Type::kArray) || entry.size() != 2) {
      entry.fail("expected a token and its score");
    }
    tokens.push_back(entry.at(size_t{0}).as_string());
    scores.push_back(entry.at(size_t{1}).as_number());
  }
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  if (!model.has("unk_id")) model.fail("expected unk_id, the id of the token for unknown text");
  const UnigramOptions options{.unk = model.at("unk_id").as_int(0, num_tokens - 1),
                               .byte_fallback = model.bool_or("byte_fallback", false)};
  return std::make_unique<Unigram>(Vocab::from_list(std::move(tokens)), std::move(scores), options);
}

/// The best way to each byte of the piece at which a character ends.
std::vector<Unigram::Node> Unigram::best_paths(std::string_view piece) const {
  std::vector<Node> nodes(piece.size() + 1);
  nodes[0].score = 0;
  const auto propose = [&nodes](size_t begin, size_t end, int64_t id, double score) {
    const double sum = nodes[begin].score + score;
    // If sums are equal, the first one stays. It has the longest last token.
    if (sum > nodes[end].score) nodes[end] = {.score = sum, .begin = begin, .id = id};
  };
  for (size_t at = 0; at < piece.size();) {
    const size_t bytes = next_code_point(piece, at).bytes;
    bool has_token = false;  // of this character alone
    tokens_.for_each_prefix(piece.substr(at), [&](const TokenTrie::Match& match) {
      propose(at, at + match.length, match.value, scores_[static_cast<size_t>(match.value)]);
      has_token = has_token || match.length == bytes;
    });
    if (!has_token) propose(at, at + bytes, options_.unk, unk_score_);
    at += bytes;
  }
  return nodes;
}

std::vector<int64_t> Unigram::ids_of(std::string_view piece) const {
  const std::vector<Node> nodes = best_paths(piece);
  std::vector<std::string_view> parts;  // the last first; adjacent unknown ones are one part
  bool after_unk = false;
  for (size_t end = piece.size(); end > 0; end = nodes[end].begin) {
    const bool is_unk = nodes[end].id == options_.unk;
    const size_t until = is_unk && after_unk ? end + parts.back().size() : end;
    if (is_unk && after_unk) parts.pop_back();
    parts.push_back(piece.substr(nodes[end].begin, until - nodes[end].begin));
    after_unk = is_unk;
  }
  std::vector<int64_t> ids;
  std::reverse(parts.begin(), parts.end());
  for (const std::string_view part : parts) {
    if (const std::optional<int64_t> id = vocab_.find(part)) {
      ids.push_back(*id);
    } else if (!options_.byte_fallback || !append_byte_tokens(vocab_, part, ids)) {
      ids.push_back(options_.unk);
    }
  }
  return ids;
}

void Unigram::tokenize(std::string_view piece, std::vector<int64_t>& ids, PieceCache& cache) const {
  cache.append(piece, ids, [this](std::string_view text) { return ids_of(text); });
}

}  // namespace cleave::inline tokenizer
