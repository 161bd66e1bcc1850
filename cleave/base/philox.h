#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace cleave::inline base {

/// Philox4x32-10: four independent 32-bit numbers for a key and a counter.
///
/// Every random number in Cleave is a pure function of (seed, stream, step, global element index),
/// so weights and masks have the same bits on every layout. There is no generator with state.
/// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);

/// The key of a random stream, from the seed and a logical name ("model.norm.weight",
/// "dropout model.layers.0").
uint64_t stream_key(uint64_t seed, std::string_view stream);

/// Standard normal numbers for the elements first, first + 1, ... of a stream. Box-Muller with own
/// log, sine and cosine, so the bits do not depend on the C library.
void fill_normal(uint64_t key, uint64_t first, std::span<double> out);

/// Uniform numbers in [0, 1) for the elements first, first + 1, ... of a stream at one step.
void fill_uniform(uint64_t key, uint64_t step, uint64_t first, std::span<float> out);

}  // namespace cleave::inline base
