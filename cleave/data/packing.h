#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "cleave/data/dataset.h"

namespace cleave::inline data {

struct PackingOptions {
  int64_t seq_len = 256;  ///< most tokens of a sequence of several texts
  bool shuffle = true;    ///< take the samples in the order of `seed`, otherwise in theirs
  uint64_t seed = 0;
};

/// Packs several samples of task lm (the texts) into each sequence. In order, each sample goes into
/// the fullest sequence that has room for it, or a new one; one that is longer than seq_len has its
/// own. Each sample is in exactly one sequence, the same in every epoch. Positions restart at 0
/// with each text, and its first token has no label: it follows no other token of the text.
std::shared_ptr<const Dataset> packed_samples(std::shared_ptr<const Dataset> samples,
                                              const PackingOptions& options);

/// How full the sequences of a dataset are.
struct Utilization {
  int64_t texts = 0, sequences = 0;
  int64_t tokens = 0;
  int64_t longest = 0;  ///< tokens of the longest sequence

  /// The share of padding if every sequence is padded to the longest, 0 to 1. A batch has less
  /// where it is only padded to its own longest.
  [[nodiscard]] double padding() const;
  /// "at most 4.2 % of tokens: 80 texts in 13 sequences of up to 96".
  [[nodiscard]] std::string text() const;
};

/// Reads all samples, unless they are packed_samples().
Utilization utilization_of(const Dataset& data);

}  // namespace cleave::inline data
