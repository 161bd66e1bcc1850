#include "cleave/base/philox.h"

#include <algorithm>

#include "cleave/base/philox_math.h"

namespace cleave::inline base {

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  return philox_words(key, counter_low, counter_high);
}

uint64_t stream_key(uint64_t seed, std::string_view stream) {
  uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a; one Philox call then mixes all bits
  for (const char c : stream) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  const auto u = philox(seed, hash, 0);
  return (uint64_t{u[1]} << 32) | u[0];
}

void fill_normal(uint64_t key, uint64_t first, std::span<double> out) {
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t element = first + done;
    const auto block = normal_block(key, element / 4);
    const size_t skip = element % 4;
    const size_t take = std::min(out.size() - done, 4 - skip);
    std::copy_n(block.begin() + static_cast<std::ptrdiff_t>(skip), take,
                out.begin() + static_cast<std::ptrdiff_t>(done));
    done += take;
  }
}

void fill_uniform(uint64_t key, uint64_t step, uint64_t first, std::span<float> out) {
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t element = first + done;
    const auto block = philox(key, element / 4, step);
    const size_t skip = element % 4;
    const size_t take = std::min(out.size() - done, 4 - skip);
    for (size_t i = 0; i < take; ++i) {
      out[done + i] = uniform_of(block[skip + i]);
    }
    done += take;
  }
}

}  // namespace cleave::inline base
