#pragma once
#include <cstdint>
#include <memory>

#include "cleave/data/mix.h"

namespace cleave::inline data {

/// Which sample is at each place of each batch. A pure function of the fields, so ranks and resumed
/// runs need no state.
struct SampleOrder {
  int64_t num_samples = 0;
  int64_t batch_size = 0;  ///< global, in samples
  bool shuffle = true;
  uint64_t seed = 0;
  std::shared_ptr<const DataMix>
      mix{};  ///< the mix of a joined_dataset(); null: all samples weigh the same

  /// The sample at `place` of the batch of `step`. Without shuffle: (step * batch_size + place)
  /// modulo num_samples. With shuffle: a new permutation of all samples each epoch. With a mix:
  /// the same for each source, over the draws from it.
  [[nodiscard]] int64_t at(int64_t step, int64_t place) const;
  /// The number of steps in `epochs` epochs, rounded up.
  [[nodiscard]] int64_t steps_of(int64_t epochs) const;
};

}  // namespace cleave::inline data
