#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "cleave/generate/processors.h"

namespace cleave::inline generation {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr int64_t kFirstRound = 64;
constexpr int64_t kGrowth = 4;

/// This rank's best `limit` tokens of a row. The place of a candidate is the id.
std::vector<Candidate> best_of_row(const Scores& scores, int64_t row, int64_t limit) {
  BestCandidates best(limit);
  const auto values = scores.row(row);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != kForbidden)
      best.offer({values[i], scores.held.begin + static_cast<int64_t>(i)});
  }
  return best.sorted();
}

/// The candidates of all ranks for some rows: up to `limit` of each rank.
struct Offers {
  std::vector<std::vector<Candidate>> merged;  ///< by row, best first
  /// By row: a bound on the candidates that were not offered; nullopt if all were.
  std::vector<std::optional<Candidate>> held_back;
};

Offers offers_of(const Scores& scores, const std::vector<int64_t>& rows, int64_t limit,
                 std::string_view site) {
  std::vector<double> mine;
  for (const int64_t row : rows) {
    const auto best = best_of_row(scores, row, limit);
    for (size_t i = 0; i < static_cast<size_t>(limit); ++i) {
      const bool is_there = i < best.size();
      mine.push_back(is_there ? static_cast<double>(best[i].score) : 0);
      mine.push_back(is_there ? static_cast<double>(best[i].place) : -1);
    }
  }
  const auto all = gathered(scores, std::move(mine), site);
  Offers offers{.merged = std::vector<std::vector<Candidate>>(rows.size()),
                .held_back = std::vector<std::optional<Candidate>>(rows.size())};
  const size_t width = 2 * static_cast<size_t>(limit);
  for (size_t r = 0; r < rows.size(); ++r) {
    auto& merged = offers.merged[r];
    for (const auto& of_rank : all) {
      size_t i = 0;
      for (; i < width && of_rank[r * width + i + 1] >= 0; i += 2) {
        merged.push_back({static_cast<float>(of_rank[r * width + i]),
                          static_cast<int64_t>(of_rank[r * width + i + 1])});
      }
      if (i < width) continue;
      auto& bound = offers.held_back[r];
      if (!bound || is_better(merged.back(), *bound)) bound = merged.back();
    }
    std::sort(merged.begin(), merged.end(), is_better);
  }
  return offers;
}

/// Forbids the tokens of a row that come after `last` in the order of preference.
void keep_through(const Scores& scores, int64_t row, const Candidate& last) {
  const auto values = scores.row(row);
  for (size_t i = 0; i < values.size(); ++i) {
    const Candidate candidate{values[i], scores.held.begin + static_cast<int64_t>(i)};
    if (is_better(last, candidate)) values[i] = kForbidden;
  }
}

std::vector<int64_t> all_rows(const Scores& scores) {
  std::vector<int64_t> rows(static_cast<size_t>(scores.num_rows()));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

void keep_top_k(const Scores& scores, int64_t k) {
  const auto rows = all_rows(scores);
  const Offers offers = offers_of(scores, rows, k, "generate top_k");
  for (size_t r = 0; r < rows.size(); ++r) {
    if (offers.merged[r].size() < static_cast<size_t>(k)) continue;
    const float least = offers.merged[r][static_cast<size_t>(k) - 1].score;
    for (float& score : scores.row(rows[r])) {
      if (score < least) score = kForbidden;
    }
  }
}

/// The last token of a row that top_p keeps; nullopt if the offered candidates do not determine it.
std::optional<Candidate> last_kept(const std::vector<Candidate>& merged,
                                   const std::optional<Candidate>& held_back, double log_sum,
                                   const GenerateSettings& settings, int64_t least_kept) {
  double mass = 0;
  int64_t num_kept = 0;
  for (const Candidate& candidate : merged) {
    if (held_back && is_better(*held_back, candidate)) return std::nullopt;
    mass += std::exp(static_cast<double>(candidate.score) - log_sum);
    ++num_kept;
    if (mass >= settings.top_p && num_kept >= least_kept) return candidate;
  }
  if (held_back) return std::nullopt;
  return merged.back();
}

void keep_top_p(const Scores& scores, const GenerateSettings& settings, int64_t least_kept) {
  const std::vector<double> log_sums = log_sum_exp_or_minus_infinity(scores);
  std::vector<int64_t> open = all_rows(scores);
  std::erase_if(open, [&](int64_t row) {  // rows of only forbidden tokens stay unchanged
    return std::isinf(log_sums[static_cast<size_t>(row)]);
  });
  for (int64_t limit = kFirstRound; !open.empty(); limit *= kGrowth) {
    const int64_t count = std::min(limit, scores.vocab_size);
    Offers offers = offers_of(scores, open, count, "generate top_p");
    if (count == scores.vocab_size) offers.held_back.assign(open.size(), std::nullopt);
    std::vector<int64_t> next;
    for (size_t r = 0; r < open.size(); ++r) {
      const double log_sum = log_sums[static_cast<size_t>(open[r])];
      const auto last =
          last_kept(offers.merged[r], offers.held_back[r], log_sum, settings, least_kept);
      if (last) {
        keep_through(scores, open[r], *last);
      } else {
        next.push_back(open[r]);
      }
    }
    open = std::move(next);
  }
}

}  // namespace

void warp(const Scores& scores, const GenerateSettings& settings, int64_t least_kept) {
  if (settings.temperature != 1.0) {
    const auto temperature = static_cast<float>(settings.temperature);
    for (int64_t r = 0; r < scores.num_rows(); ++r) {
      for (float& score : scores.row(r)) score /= temperature;
    }
  }
  if (settings.top_k > 0) {
    const int64_t k = std::max(settings.top_k, least_kept);
    if (k < scores.vocab_size) keep_top_k(scores, k);
  }
  if (settings.top_p < 1.0) keep_top_p(scores, settings, least_kept);
}

}  // namespace cleave::inline generation
