#pragma once
// Sampling of a token, so that the next step need not wait for the host.
#include <cmath>
#include <limits>

#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/cuda/choice_kernels.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

/// Sorts first by the score, then lower ids first: greater keys are better. 0 is below all.
CLEAVE_DEVICE uint64_t key_of(float score, int64_t id) {
  uint32_t bits = 0;
  memcpy(&bits, &score, sizeof bits);
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (uint64_t{ordered} << 32) | (0xFFFFFFFFU - static_cast<uint32_t>(id));
}
CLEAVE_DEVICE float score_of_key(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  const uint32_t bits = (ordered >> 31) != 0 ? ordered & 0x7FFFFFFFU : ~ordered;
  float score = 0;
  memcpy(&score, &bits, sizeof score);
  return score;
}
CLEAVE_DEVICE int64_t id_of_key(uint64_t key) {
  return int64_t{0xFFFFFFFFU - static_cast<uint32_t>(key)};
}

/// Bitonic sort of `size` keys in shared memory, the greatest first; a power of two. Runs of
/// `sorted` keys are in order already, the first descending, the next ascending, and so on.
template <class Block>
CLEAVE_DEVICE void sort_keys(const Block& block, uint64_t* keys, int size, int sorted) {
  for (int run = 2 * sorted; run <= size; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      for (int i = block.thread(); i < size / 2; i += block.threads()) {
        const int a = 2 * i - (i & (apart - 1));
        const uint64_t first = keys[a], second = keys[a + apart];
        if ((first < second) != ((a & run) == 0)) continue;
        keys[a] = second;
        keys[a + apart] = first;
      }
      block.sync();
    }
  }
}

/// The block's shared memory behind that of over_block().
template <class Item, class Block>
CLEAVE_DEVICE Item* behind_over_block(const Block& block) {
  return reinterpret_cast<Item*>(static_cast<unsigned char*>(block.shared()) + kOverBlockBytes);
}

/// exp(score - largest); 0 where every token is forbidden.
CLEAVE_DEVICE double mass_of(float score, float largest) {
  return score == kNoLogit ? 0 : std::exp(double{score} - double{largest});
}

/// A block for each part of a row.
template <class T>
struct SamplePartKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const SampleJob& job, uint64_t* lists) const {
    const int64_t parts = parts_of(job.width, kSamplePart);
    const int64_t r = block.index() / parts;
    const int64_t begin = (block.index() - r * parts) * kSamplePart;
    const int64_t left = job.width - begin;
    const int count = static_cast<int>(left < kSamplePart ? left : kSamplePart);
    const T* const logits = static_cast<const T*>(job.logits) + r * job.width + begin;
    float own = kNoLogit;
    for (int i = block.thread(); i < count; i += block.threads()) {
      const float z = load_number(logits + i);
      own = z > own ? z : own;
    }
    const float largest = over_block(block, own, [](float a, float b) { return a > b ? a : b; });
    const float finite = largest == kNoLogit ? 0 : largest;
    float sum = 0;
    double mass = 0;
    for (int i = block.thread(); i < count; i += block.threads()) {
      const float z = load_number(logits + i);
      sum += std::exp(z - finite);
      mass += mass_of(z / job.temperature, finite / job.temperature);
    }
    sum = sum_over_block(block, sum);
    mass = sum_over_block(block, mass);
    if (block.thread() == 0) {
      job.parts[block.index()] = {.mass = mass, .largest = largest, .sum = sum};
    }
    if (lists == nullptr) return;
    auto* const keys = behind_over_block<uint64_t>(block);
    int size = kListed;
    while (size < count) size *= 2;
    for (int i = block.thread(); i < size; i += block.threads()) {
      keys[i] = i < count ? key_of(load_number(logits + i) / job.temperature, begin + i) : 0;
    }
    block.sync();
    sort_keys(block, keys, size, 1);
    for (int i = block.thread(); i < kListed; i += block.threads()) {
      lists[block.index() * kListed + i] = keys[i];
    }
  }
};

/// Merges up to kMergedLists lists of a row; a block for each result.
struct MergeListsKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const uint64_t* from, int64_t num_lists,
                                uint64_t* to) const {
    const int64_t results = parts_of(num_lists, kMergedLists);
    const int64_t r = block.index() / results;
    const int64_t first = (block.index() - r * results) * kMergedLists;
    auto* const keys = behind_over_block<uint64_t>(block);
    for (int i = block.thread(); i < kMergedLists * kListed; i += block.threads()) {
      const int list = i / kListed, place = i % kListed;
      const int source = list % 2 == 0 ? place : kListed - 1 - place;
      keys[i] =
          first + list < num_lists ? from[(r * num_lists + first + list) * kListed + source] : 0;
    }
    block.sync();
    sort_keys(block, keys, kMergedLists * kListed, kListed);
    for (int i = block.thread(); i < kListed; i += block.threads()) {
      to[block.index() * kListed + i] = keys[i];
    }
  }
};

/// A block of kListed threads for each row. `list` [rows, kListed] are the best tokens, null if all
/// may be chosen.
template <class T>
struct SampleTokenKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const SampleJob& job,
                                const uint64_t* list) const {
    const int64_t r = block.index();
    const OfRow row = row_of(block, job, r);
    const Chosen chosen =
        list != nullptr ? of_list(block, job, row, list + r * kListed) : of_all(block, job, row);
    if (block.thread() != 0) return;
    const int64_t id = chosen.id < job.width ? chosen.id : 0;  // none: a row that is not finite
    double* const result = job.results + r * kChoiceNumbers;
    result[0] = chosen.is_known ? static_cast<double>(id) : -1;
    result[1] = static_cast<double>(load_number(row.logits + id));
    result[2] = static_cast<double>(row.largest);
    result[3] = static_cast<double>(row.sum);
    job.ids[r] = id;
    if (r == 0) *job.num_keys += 1;
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  struct OfRow {
    const T* logits;
    const PartOfLogits* parts;
    double uniform, mass;  // the mass of all tokens
    float largest, score;  // the largest logit, and its score
    float sum;
  };
  struct Chosen {
    int64_t id;
    bool is_known;
  };

  template <class Block>
  CLEAVE_DEVICE static OfRow row_of(const Block& block, const SampleJob& job, int64_t r) {
    const int64_t num_parts = parts_of(job.width, kSamplePart);
    const PartOfLogits* const parts = job.parts + r * num_parts;
    const bool has_part = block.thread() < num_parts;
    const PartOfLogits own =
        has_part ? parts[block.thread()] : PartOfLogits{.mass = 0, .largest = kNoLogit, .sum = 0};
    const float largest =
        over_block(block, own.largest, [](float a, float b) { return a > b ? a : b; });
    const float score = largest / job.temperature;
    return {.logits = static_cast<const T*>(job.logits) + r * job.width,
            .parts = parts,
            .uniform = job.uniforms[r],
            .mass = sum_over_block(block, own.mass * mass_of(own.largest / job.temperature, score)),
            .largest = largest,
            .score = score,
            .sum = sum_over_block(block, rescaled(own.sum, own.largest, largest))};
  }

  /// The sum of the masses before a thread's.
  CLEAVE_DEVICE static double mass_before(const double* masses, int thread) {
    double sum = 0;
    CLEAVE_NOT_UNROLLED
    for (int i = 0; i < thread; ++i) sum += masses[i];
    return sum;
  }

  /// What the list keeps by top_k. Each thread has one token of the list, its mass is there
  /// already.
  struct Kept {
    double total;  // the mass of the kept tokens, listed or not
    bool is_known;
  };
  template <class Block>
  CLEAVE_DEVICE static Kept keep_top_k(const Block& block, const SampleJob& job, const OfRow& row,
                                       const uint64_t* list, double* masses) {
    if (job.top_k == 0 || job.top_k >= job.width) return {.total = row.mass, .is_known = true};
    const float least_score = score_of_key(list[job.top_k - 1]);
    if (!(score_of_key(list[block.thread()]) >= least_score)) masses[block.thread()] = 0;
    block.sync();
    // Tokens behind the list may have the same score as the last one that is kept.
    const bool is_known = job.width <= kListed || least_score == kNoLogit ||
                          score_of_key(list[kListed - 1]) < least_score;
    return {.total = mass_before(masses, kListed), .is_known = is_known};
  }
  /// The same by top_p, of which `kept` is left by top_k.
  template <class Block>
  CLEAVE_DEVICE static Kept keep_top_p(const Block& block, const SampleJob& job, const Kept& kept,
                                       double* masses) {
    if (job.top_p == 1) return kept;
    const double least_mass = job.top_p * kept.total;
    const double listed = mass_before(masses, kListed);
    const bool is_kept = mass_before(masses, block.thread()) < least_mass;
    block.sync();
    if (!is_kept) masses[block.thread()] = 0;
    block.sync();
    const bool has_all = job.top_k > 0 || job.width <= kListed;
    return {.total = mass_before(masses, kListed),
            .is_known = kept.is_known && (has_all || listed >= least_mass)};
  }

  /// Each thread has one token of the list.
  template <class Block>
  CLEAVE_DEVICE static Chosen of_list(const Block& block, const SampleJob& job, const OfRow& row,
                                      const uint64_t* list) {
    auto* const masses = behind_over_block<double>(block);
    auto* const ids = reinterpret_cast<int64_t*>(masses + kListed);
    const int t = block.thread();
    const bool is_there = t < job.width;
    const int64_t id = is_there ? id_of_key(list[t]) : kNone;
    ids[t] = id;
    masses[t] = is_there ? mass_of(score_of_key(list[t]), row.score) : 0;
    block.sync();
    const Kept by_k = keep_top_k(block, job, row, list, masses);
    const Kept kept = keep_top_p(block, job, by_k, masses);
    double before = 0;  // of the tokens with lower ids
    CLEAVE_NOT_UNROLLED
    for (int i = 0; i < kListed; ++i) before += ids[i] < id ? masses[i] : 0;
    const double own = masses[t];
    const bool reaches = own > 0 && before + own > row.uniform * mass_before(masses, kListed);
    return {.id = first_or_last(block, reaches ? id : kNone, own > 0 ? id : -1),
            .is_known = kept.is_known};
  }
  /// The least `first` of the threads; without one, the greatest `last`: rounding may leave the
  /// target just above the sum. kNone if there is neither.
  template <class Block>
  CLEAVE_DEVICE static int64_t first_or_last(const Block& block, int64_t first, int64_t last) {
    const int64_t chosen =
        over_block(block, first, [](int64_t a, int64_t b) { return a < b ? a : b; });
    const int64_t latest =
        over_block(block, last, [](int64_t a, int64_t b) { return a > b ? a : b; });
    if (chosen != kNone) return chosen;
    return latest < 0 ? kNone : latest;
  }

  /// Each thread has one part, then some neighbours in the part that is chosen.
  template <class Block>
  CLEAVE_DEVICE static Chosen of_all(const Block& block, const SampleJob& job, const OfRow& row) {
    auto* const masses = behind_over_block<double>(block);
    const int t = block.thread();
    const int64_t num_parts = parts_of(job.width, kSamplePart);
    const double target = row.uniform * row.mass;
    masses[t] = 0;
    if (t < num_parts) {
      const PartOfLogits& part = row.parts[t];
      masses[t] = part.mass * mass_of(part.largest / job.temperature, row.score);
    }
    block.sync();
    const bool has_mass = masses[t] > 0;
    const bool reaches = has_mass && mass_before(masses, t) + masses[t] > target;
    const int64_t part =
        first_or_last(block, reaches ? int64_t{t} : kNone, has_mass ? int64_t{t} : -1);
    if (part == kNone) return {.id = kNone, .is_known = true};
    const double before = mass_before(masses, static_cast<int>(part));
    block.sync();
    constexpr int kNeighbours = static_cast<int>(kSamplePart) / kListed;
    const int64_t first = part * kSamplePart + int64_t{t} * kNeighbours;
    double own = 0;
    CLEAVE_NOT_UNROLLED
    for (int64_t id = first; id < first + kNeighbours && id < job.width; ++id) {
      own += mass_of(load_number(row.logits + id) / job.temperature, row.score);
    }
    masses[t] = own;
    block.sync();
    double sum = before + mass_before(masses, t);
    int64_t chosen = kNone, latest = -1;
    CLEAVE_NOT_UNROLLED
    for (int64_t id = first; id < first + kNeighbours && id < job.width; ++id) {
      const double mass = mass_of(load_number(row.logits + id) / job.temperature, row.score);
      if (mass == 0) continue;
      sum += mass;
      latest = id;
      if (chosen == kNone && sum > target) chosen = id;
    }
    return {.id = first_or_last(block, chosen, latest), .is_known = true};
  }
};

}  // namespace cleave::inline kernels
