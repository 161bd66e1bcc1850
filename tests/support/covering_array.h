#pragma once
#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cleave/base/error.h"

namespace cleave::test {

/// An option and its possible values.
struct Factor {
  std::string name;
  std::vector<std::string> values;
};

/// The index of the value of each factor; kOpen if it is not chosen yet.
using ArrayRow = std::vector<int>;
inline constexpr int kOpen = -1;

/// A small set of rows that contains every allowed combination of values of any `strength` factors.
///
/// Greedy: each row begins with the first missing combination; the other factors, in random order,
/// take the value that adds the most missing combinations. The best of kTries rows is kept.
/// (Source: Cohen, Dalal, Fredman and Patton, "The AETG system", IEEE Trans. Softw. Eng. 23, 1997.)
/// The same arguments give the same rows.
class CoveringArray {
 public:
  /// Whether the chosen values of a row are allowed together. Every allowed combination must be
  /// part of an allowed complete row.
  using Allowed = std::function<bool(const ArrayRow&)>;

  CoveringArray(std::vector<Factor> factors, size_t strength, Allowed allowed)
      : factors_(std::move(factors)), strength_(strength), allowed_(std::move(allowed)) {
    list_combinations({}, 0);
  }

  [[nodiscard]] std::vector<ArrayRow> rows() {
    std::vector<ArrayRow> out;
    for (const ArrayRow& missing : combinations_) {
      if (is_covered(missing)) continue;
      out.push_back(best_row(missing));
      cover(out.back());
    }
    return out;
  }
  /// Allowed combinations of `strength` values.
  [[nodiscard]] size_t num_combinations() const { return combinations_.size(); }

 private:
  static constexpr int kTries = 12;

  void list_combinations(std::vector<size_t> chosen, size_t from) {
    if (chosen.size() == strength_) {
      offsets_.push_back({chosen, covered_.size()});
      size_t count = 1;
      for (const size_t f : chosen) count *= factors_[f].values.size();
      for (size_t n = 0; n < count; ++n) list_values(chosen, n);
      covered_.resize(covered_.size() + count, 0);
      return;
    }
    for (size_t f = from; f < factors_.size(); ++f) {
      chosen.push_back(f);
      list_combinations(chosen, f + 1);
      chosen.pop_back();
    }
  }
  void list_values(const std::vector<size_t>& chosen, size_t number) {
    ArrayRow row(factors_.size(), kOpen);
    for (const size_t f : chosen) {
      row[f] = static_cast<int>(number % factors_[f].values.size());
      number /= factors_[f].values.size();
    }
    if (allowed_(row)) combinations_.push_back(row);
  }

  /// Calls `see` with the index in covered_ of each combination of chosen values of a row; with
  /// `of`, only of the combinations that have this factor.
  template <class See>
  void each(const ArrayRow& row, const See& see, size_t of = std::string::npos) const {
    for (const auto& [chosen, offset] : offsets_) {
      if (of != std::string::npos && std::find(chosen.begin(), chosen.end(), of) == chosen.end()) {
        continue;
      }
      size_t place = 0, scale = 1;
      bool is_chosen = true;
      for (const size_t f : chosen) {
        if (row[f] == kOpen) {
          is_chosen = false;
          break;
        }
        place += static_cast<size_t>(row[f]) * scale;
        scale *= factors_[f].values.size();
      }
      if (is_chosen) see(offset + place);
    }
  }
  [[nodiscard]] bool is_covered(const ArrayRow& combination) const {
    bool covered = false;
    each(combination, [&](size_t place) { covered = covered_[place] != 0; });
    return covered;
  }
  void cover(const ArrayRow& row) {
    each(row, [&](size_t place) { covered_[place] = 1; });
  }
  [[nodiscard]] int gain(const ArrayRow& row, size_t of = std::string::npos) const {
    int count = 0;
    each(
        row, [&](size_t place) { count += covered_[place] == 0 ? 1 : 0; }, of);
    return count;
  }

  /// Chooses a value for every open factor of `row`; returns false if some factor has none.
  bool complete(ArrayRow& row) {
    std::vector<size_t> open;
    for (size_t f = 0; f < row.size(); ++f) {
      if (row[f] == kOpen) open.push_back(f);
    }
    std::shuffle(open.begin(), open.end(), random_);
    for (const size_t f : open) {
      int best = kOpen, most = -1;
      const auto count = static_cast<int>(factors_[f].values.size());
      const auto first = static_cast<int>(random_() % static_cast<unsigned>(count));
      for (int i = 0; i < count; ++i) {
        row[f] = (first + i) % count;
        if (!allowed_(row)) continue;
        const int own = gain(row, f);
        if (own > most) most = own, best = row[f];
      }
      row[f] = best;
      if (best == kOpen) return false;
    }
    return true;
  }
  ArrayRow best_row(const ArrayRow& missing) {
    ArrayRow best;
    int most = -1;
    for (int i = 0; i < kTries; ++i) {
      ArrayRow row = missing;
      if (!complete(row)) continue;
      const int own = gain(row);
      if (own > most) most = own, best = row;
    }
    CLEAVE_CHECK(most >= 0, Code::kBug, "no complete row has the combination ", describe(missing));
    return best;
  }
  [[nodiscard]] std::string describe(const ArrayRow& row) const {
    std::string text;
    for (size_t f = 0; f < row.size(); ++f) {
      if (row[f] == kOpen) continue;
      text += factors_[f].name + "=" + factors_[f].values[static_cast<size_t>(row[f])] + " ";
    }
    return text;
  }

  struct Offset {
    std::vector<size_t> factors;
    size_t begin;
  };
  std::vector<Factor> factors_;
  size_t strength_;
  Allowed allowed_;
  std::vector<Offset> offsets_;  // in covered_, for each choice of factors
  std::vector<char> covered_;
  std::vector<ArrayRow> combinations_;  // allowed ones
  std::mt19937 random_{19};
};

}  // namespace cleave::test
