#include "cleave/generate/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/fused.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline generation {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Largest score of a row on this rank and the sum of exp(score - largest).
struct Mass {
  double top = kMinusInfinity;
  double sum = 0;
};

/// The mass of each row on this rank.
std::vector<Mass> masses_of(const Scores& scores) {
  std::vector<Mass> out(static_cast<size_t>(scores.num_rows()));
  if (scores.values.size(1) == 0) return out;
  if (!is_on(Kernel::kLoss)) {
    const Tensor top = scores.values.amax(1, /*keepdim=*/true);
    const Tensor finite_top = top.masked_fill(top.eq(kMinusInfinity), 0);
    const Tensor sum = (scores.values - finite_top).exp_().sum(1, false, at::kDouble);
    for (size_t r = 0; r < out.size(); ++r) {
      out[r] = {static_cast<double>(top.const_data_ptr<float>()[r]),
                sum.const_data_ptr<double>()[r]};
    }
    return out;
  }
  const SoftmaxSums of_rows = softmax_sums(scores.values);
  for (size_t r = 0; r < out.size(); ++r) {
    out[r] = {static_cast<double>(of_rows.largest.const_data_ptr<float>()[r]),
              static_cast<double>(of_rows.sums.const_data_ptr<float>()[r])};
  }
  return out;
}

double log_of_sum(std::span<const Mass> masses) {
  double top = kMinusInfinity;
  for (const Mass& mass : masses) top = std::isnan(mass.sum) ? mass.sum : std::max(top, mass.top);
  if (top == kMinusInfinity) return top;
  CLEAVE_CHECK(std::isfinite(top), Code::kNumerics, "the largest logit is ", top,
               "; the model's logits must be finite");
  double sum = 0;
  for (const Mass& mass : masses) {
    if (mass.sum > 0) sum += mass.sum * std::exp(mass.top - top);
  }
  return top + std::log(sum);
}

/// Returns `log_sum`; throws if every token of the row is forbidden.
double require_allowed(double log_sum) {
  CLEAVE_CHECK(log_sum != kMinusInfinity, Code::kNumerics,
               "the largest logit is -inf; either the model's logits are not finite, or every "
               "token is forbidden");
  return log_sum;
}

/// The masses of all ranks: result[rank][row].
std::vector<std::vector<Mass>> all_masses(const Scores& scores) {
  std::vector<double> mine;
  for (const Mass& mass : masses_of(scores)) mine.insert(mine.end(), {mass.top, mass.sum});
  std::vector<std::vector<Mass>> out;
  for (const auto& numbers : gathered(scores, std::move(mine), "generate log_sum_exp")) {
    auto& masses = out.emplace_back();
    for (size_t i = 0; i < numbers.size(); i += 2) masses.push_back({numbers[i], numbers[i + 1]});
  }
  return out;
}

std::vector<Mass> of_row(const std::vector<std::vector<Mass>>& masses, size_t row) {
  std::vector<Mass> out;
  for (const auto& of_rank : masses) out.push_back(of_rank[row]);
  return out;
}

/// The first of this rank's tokens where the cumulative sum of exp(score - top) exceeds `target`.
int64_t place_of(std::span<const float> row, double top, double target) {
  double sum = 0;
  int64_t last = 0;  // rounding may leave the target just above the sum
  for (size_t i = 0; i < row.size(); ++i) {
    const double p = std::exp(static_cast<double>(row[i]) - top);
    if (p == 0) continue;
    sum += p;
    last = static_cast<int64_t>(i);
    if (sum > target) break;
  }
  return last;
}

}  // namespace

Scores Scores::from_logits(const DTensor& logits) {
  const Placement& p = logits.placement();
  const bool is_shard = logits.is_split() && p.is_shard();
  CLEAVE_CHECK(!is_shard || (p.is_shard(logits.dim() - 1) && p.split()->in_order()), Code::kShape,
               "generation needs logits as Replicate or Shard(-1); got ", p.describe(), " made by ",
               logits.maker());
  CLEAVE_CHECK(is_shard || !logits.is_split() || p.is_whole(), Code::kShape,
               "generation needs logits as Replicate or Shard(-1); got ", p.describe(), " made by ",
               logits.maker());
  const int64_t whole = logits.size(-1);
  const Tensor values = logits.local().select(1, logits.local().size(1) - 1);
  return {.values = values.to(at::kCPU, at::kFloat).contiguous(),
          .held = is_shard ? p.split()->ranges(logits.axis().rank()).front() : Range{0, whole},
          .vocab_size = whole,
          .axis = is_shard ? logits.axis() : Axis()};
}

std::span<float> Scores::row(int64_t r) const {
  const int64_t width = values.size(1);
  return {values.data_ptr<float>() + r * width, static_cast<size_t>(width)};
}

Scores Scores::copy() const {
  Scores out = *this;
  out.values = values.clone();
  return out;
}

std::vector<std::vector<double>> gathered(const Scores& scores, std::vector<double> mine,
                                          std::string_view site) {
  const Axis& axis = scores.axis;
  if (axis.size() == 1 && scores.replicas.size() == 1) return {std::move(mine)};
  const auto count = static_cast<int64_t>(mine.size());
  const std::vector<int64_t> widths(static_cast<size_t>(axis.size()), count);
  const Tensor t = at::from_blob(mine.data(), {count}, at::kDouble);
  Tensor all = axis.all_gather(t, 0, widths, site);
  scores.replicas.broadcast_(all, 0, site);
  std::vector<std::vector<double>> out;
  const double* numbers = all.const_data_ptr<double>();
  for (int rank = 0; rank < axis.size(); ++rank, numbers += count) {
    out.emplace_back(numbers, numbers + count);
  }
  return out;
}

std::vector<double> log_sum_exp(const Scores& scores) {
  std::vector<double> out = log_sum_exp_or_minus_infinity(scores);
  for (const double log_sum : out) require_allowed(log_sum);
  return out;
}

std::vector<double> log_sum_exp_or_minus_infinity(const Scores& scores) {
  const auto masses = all_masses(scores);
  std::vector<double> out;
  for (size_t r = 0; r < static_cast<size_t>(scores.num_rows()); ++r) {
    out.push_back(log_of_sum(of_row(masses, r)));
  }
  return out;
}

void BestCandidates::offer(const Candidate& candidate) {
  if (heap_.size() == limit_) {
    if (limit_ == 0 || !is_better(candidate, heap_.front())) return;
    std::pop_heap(heap_.begin(), heap_.end(), is_better);
    heap_.back() = candidate;
  } else {
    heap_.push_back(candidate);
  }
  std::push_heap(heap_.begin(), heap_.end(), is_better);
}

std::vector<Candidate> BestCandidates::sorted() const {
  std::vector<Candidate> out = heap_;
  std::sort(out.begin(), out.end(), is_better);
  return out;
}

std::vector<Choice> best_choices(const Scores& scores, const Scores& raw) {
  const std::vector<double> log_sums = log_sum_exp(raw);
  std::vector<double> mine;  // score, id, the model's score of it
  for (int64_t r = 0; r < scores.num_rows(); ++r) {
    const auto row = scores.row(r);
    const auto best = std::max_element(row.begin(), row.end());  // the first of equals
    if (best == row.end()) {
      mine.insert(mine.end(), {kMinusInfinity, -1.0, 0.0});
    } else {
      const int64_t place = best - row.begin();
      mine.insert(mine.end(),
                  {static_cast<double>(*best), static_cast<double>(scores.held.begin + place),
                   static_cast<double>(raw.row(r)[static_cast<size_t>(place)])});
    }
  }
  const auto all = gathered(scores, std::move(mine), "generate best token");
  std::vector<Choice> out;
  for (size_t r = 0; r < log_sums.size(); ++r) {
    const std::vector<double>* best = nullptr;
    for (const auto& of_rank : all) {  // ranks hold ascending ids, so > keeps the lowest of equals
      if (of_rank[3 * r + 1] < 0) continue;
      if (best == nullptr || of_rank[3 * r] > (*best)[3 * r]) best = &of_rank;
    }
    out.push_back({.id = static_cast<int64_t>((*best)[3 * r + 1]),
                   .log_prob = (*best)[3 * r + 2] - log_sums[r]});
  }
  return out;
}

std::optional<std::vector<Choice>> choices_of(const Tensor& chosen) {
  std::vector<Choice> out;
  for (int64_t r = 0; r < chosen.size(0); ++r) {
    const double* const row = chosen.const_data_ptr<double>() + r * chosen.size(1);
    const Mass mass{.top = row[2], .sum = row[3]};
    const double log_sum = require_allowed(log_of_sum({&mass, 1}));
    if (row[0] < 0) return std::nullopt;
    out.push_back({.id = static_cast<int64_t>(row[0]), .log_prob = row[1] - log_sum});
  }
  return out;
}

std::vector<Choice> sampled_choices(const Scores& scores, const Scores& raw,
                                    std::span<const double> uniforms) {
  const std::vector<double> log_sums = log_sum_exp(raw);
  const auto masses = all_masses(scores);
  std::vector<size_t> owners;
  std::vector<double> mine;  // id and the model's score of it; id -1 if another rank owns the row
  for (size_t r = 0; r < uniforms.size(); ++r) {
    const double log_sum = require_allowed(log_of_sum(of_row(masses, r)));
    double before = 0;
    double target = 0;
    size_t owner = 0;
    for (size_t rank = 0; rank < masses.size(); ++rank) {
      const Mass& mass = masses[rank][r];
      if (mass.sum == 0) continue;
      const double share = mass.sum * std::exp(mass.top - log_sum);
      owner = rank;
      target = uniforms[r] - before;
      before += share;
      if (before > uniforms[r]) break;
    }
    owners.push_back(owner);
    if (owner != static_cast<size_t>(scores.axis.rank())) {
      mine.insert(mine.end(), {-1.0, 0.0});
      continue;
    }
    const auto row = static_cast<int64_t>(r);
    const int64_t place = place_of(scores.row(row), log_sum, target);
    mine.insert(mine.end(), {static_cast<double>(scores.held.begin + place),
                             static_cast<double>(raw.row(row)[static_cast<size_t>(place)])});
  }
  const auto all = gathered(scores, std::move(mine), "generate sampled token");
  std::vector<Choice> out;
  for (size_t r = 0; r < owners.size(); ++r) {
    const auto& of_owner = all[owners[r]];
    out.push_back({.id = static_cast<int64_t>(of_owner[2 * r]),
                   .log_prob = of_owner[2 * r + 1] - log_sums[r]});
  }
  return out;
}

}  // namespace cleave::inline generation
