#pragma once
#include <cstdint>

namespace cleave {

/// Which sample every place of every batch is: a pure function of its fields, so any rank and any
/// resumed run knows it without state.
struct SampleOrder {
  int64_t num_samples = 0;
  int64_t batch_size = 0;  ///< global, in samples
  bool shuffle = true;
  uint64_t seed = 0;

  /// The sample at `place` of the batch of `step`. Without shuffle: (step * batch_size + place)
  /// modulo num_samples. With: each epoch a new permutation, all samples once an epoch.
  [[nodiscard]] int64_t at(int64_t step, int64_t place) const;
  /// Steps that make `epochs` epochs, rounded up.
  [[nodiscard]] int64_t steps_of(int64_t epochs) const;
};

}  // namespace cleave
