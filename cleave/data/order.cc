#include "cleave/data/order.h"

#include <bit>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/base/philox.h"
#include "cleave/base/str.h"

namespace cleave::inline data {
namespace {

constexpr uint64_t kRounds = 6;

/// Element `index` of the permutation of 0..count-1 given by `key` and `epoch`, without a table: a
/// Feistel network over the next power of four, repeated until the result is below count.
uint64_t permuted(uint64_t index, uint64_t count, uint64_t key, uint64_t epoch) {
  const auto half = static_cast<uint32_t>((std::bit_width(count - 1) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half;
    uint64_t right = index & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = philox(key, right | (round << 32), epoch)[0];
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    index = (left << half) | right;
  } while (index >= count);
  return index;
}

/// The sample of the draw after `drawn` others, of `count` samples. `stream` names the order.
int64_t sample_of(const SampleOrder& order, uint64_t drawn, uint64_t count,
                  std::string_view stream) {
  if (!order.shuffle || count == 1) return static_cast<int64_t>(drawn % count);
  const uint64_t key = stream_key(order.seed, stream);
  return static_cast<int64_t>(permuted(drawn % count, count, key, drawn / count));
}

}  // namespace

int64_t SampleOrder::at(int64_t step, int64_t place) const {
  CLEAVE_CHECK(num_samples > 0 && batch_size > 0 && step >= 0, Code::kUsage,
               "num_samples=", num_samples, ", batch_size=", batch_size, ", step=", step,
               "; expected at least 1, 1 and 0");
  const int64_t drawn = step * batch_size + place;
  if (mix == nullptr) {
    return sample_of(*this, static_cast<uint64_t>(drawn), static_cast<uint64_t>(num_samples),
                     "data order");
  }
  const auto [source, number] = mix->draw(drawn);
  return mix->first(source) + sample_of(*this, static_cast<uint64_t>(number),
                                        static_cast<uint64_t>(mix->size(source)),
                                        str("data order of source ", source));
}

int64_t SampleOrder::steps_of(int64_t epochs) const {
  CLEAVE_CHECK(batch_size > 0, Code::kUsage, "batch_size=", batch_size, "; expected at least 1");
  return (epochs * num_samples + batch_size - 1) / batch_size;
}

}  // namespace cleave::inline data
