#include "cleave/generate/processors.h"

#include <algorithm>
#include <limits>

namespace cleave::inline generation {
namespace {

void penalize(const Scores& scores, int64_t row, const Ids& ids, float penalty) {
  Ids seen = ids;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const int64_t id : seen) {
    if (!scores.holds(id)) continue;
    float& score = scores.row(row)[static_cast<size_t>(id - scores.held.begin)];
    score = score < 0 ? score * penalty : score / penalty;
  }
}

void forbid(const Scores& scores, int64_t row, const Ids& ids) {
  for (const int64_t id : ids) {
    if (!scores.holds(id)) continue;
    scores.row(row)[static_cast<size_t>(id - scores.held.begin)] =
        -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

bool has_processors(const GenerateSettings& settings) {
  return settings.repetition_penalty != 1.0 || settings.no_repeat_ngram_size > 0;
}

Ids repeating_ids(std::span<const int64_t> ids, int64_t size) {
  const auto before = static_cast<size_t>(size - 1);  // length of an n-gram without its last id
  Ids out;
  if (ids.size() < before) return out;
  const auto end = ids.last(before);
  for (size_t start = 0; start + before < ids.size(); ++start) {
    if (std::ranges::equal(ids.subspan(start, before), end)) out.push_back(ids[start + before]);
  }
  return out;
}

void apply_processors(const Scores& scores, std::span<const Ids> rows,
                      const GenerateSettings& settings) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto row = static_cast<int64_t>(r);
    if (settings.repetition_penalty != 1.0) {
      penalize(scores, row, rows[r], static_cast<float>(settings.repetition_penalty));
    }
    if (settings.no_repeat_ngram_size > 0) {
      forbid(scores, row, repeating_ids(rows[r], settings.no_repeat_ngram_size));
    }
  }
}

}  // namespace cleave::inline generation
