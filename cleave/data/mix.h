#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cleave/data/dataset.h"

namespace cleave::inline data {

/// Data from which a share of all sequences is drawn.
struct WeightedData {
  std::string name;  ///< for messages
  std::shared_ptr<const Dataset> data;
  double weight = 1;
};

/// In which order sequences are drawn from several sources, in proportion to their weights. It is a
/// pure function, so that ranks and resumed runs need no state. Source of the order: the blended
/// data sets of Megatron-LM, where each draw comes from the source that is furthest behind its
/// share. After n draws, no source is ahead of its share by a sequence, and with two sources none
/// is behind by one. The pattern repeats after 65536 draws.
class DataMix {
 public:
  /// Throws Error(kUsage) for a share of less than one sequence per repetition.
  explicit DataMix(const std::vector<WeightedData>& sources);

  /// A draw from one source.
  struct Draw {
    int64_t source = 0;
    int64_t number = 0;  ///< how many sequences of this source were drawn before
  };
  /// The draw after n others, n >= 0.
  [[nodiscard]] Draw draw(int64_t n) const;
  /// The range of a source in the joined data.
  [[nodiscard]] int64_t first(int64_t source) const { return firsts_[static_cast<size_t>(source)]; }
  [[nodiscard]] int64_t size(int64_t source) const { return sizes_[static_cast<size_t>(source)]; }

 private:
  std::vector<int64_t> firsts_, sizes_, counts_;  // of each source; draws per repetition
  std::vector<Draw> pattern_;                     // of one repetition
};

/// The samples of all sources, one source after the other. The fingerprint covers the weights.
/// Throws Error(kUsage) if some sources are text and others are ids.
std::shared_ptr<const Dataset> joined_dataset(const std::vector<WeightedData>& sources);

}  // namespace cleave::inline data
