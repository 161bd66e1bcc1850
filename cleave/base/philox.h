#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace cleave {

/// Four independent 32-bit numbers for one counter value under one key: Philox4x32-10.
///
/// Every random number in Cleave is a pure function of (seed, stream, step, global element index),
/// so that weights and masks are the same bits on every layout. Nothing is ever drawn from a shared
/// generator. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);

/// The key of a stream: `seed` and a logical name ("model.norm.weight", "dropout model.layers.0").
uint64_t stream_key(uint64_t seed, std::string_view stream);

/// Standard normal numbers of the elements first, first + 1, ... of a stream (Box-Muller on its own
/// polynomials, so the bits do not depend on a maths library).
void fill_normal(uint64_t key, uint64_t first, std::span<double> out);

/// Uniform numbers in [0, 1) of the elements first, first + 1, ... of a stream at one step, 32 bits
/// each.
void fill_uniform(uint64_t key, uint64_t step, uint64_t first, std::span<float> out);

}  // namespace cleave
