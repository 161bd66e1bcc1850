#pragma once
// Decoding: one new token of each sequence. How many tokens there are so far is read from device
// memory, so that a recorded step can be repeated for every token.
#include <cmath>
#include <limits>

#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

/// Loads that a thread starts before it needs the first.
inline constexpr int kAhead = 4;

/// A warp for each head of queries, keys and values of each sequence.
template <class T>
struct AppendTokenKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const AppendTokenJob& job) const {
    const int64_t of_sequence = job.heads + 2 * job.kv_heads;
    const int64_t b = block.index() / of_sequence;
    int64_t head = block.index() - b * of_sequence;
    const int64_t place = *job.num_keys - 1;
    if (head < job.heads) {
      move(block, job, b, at(job.q, job.of_q, b, head),
           static_cast<T*>(job.rotated_q) + (b * job.heads + head) * job.width, true);
      return;
    }
    head -= job.heads;
    const bool is_key = head < job.kv_heads;
    if (!is_key) head -= job.kv_heads;
    T* const cache = static_cast<T*>(is_key ? job.keys : job.values);
    const T* const from = is_key ? at(job.k, job.of_k, b, head) : at(job.v, job.of_v, b, head);
    const int64_t row = (b * job.kv_heads + head) * job.capacity + place;
    move(block, job, b, from, cache + row * job.width, is_key);
  }

 private:
  CLEAVE_DEVICE static const T* at(const void* data, const AppendTokenJob::Strides& strides,
                                   int64_t b, int64_t head) {
    return static_cast<const T*>(data) + b * strides.batch + head * strides.head;
  }
  /// to = from, the first 2 half dims rotated if `rotates`.
  template <class Block>
  CLEAVE_DEVICE static void move(const Block& block, const AppendTokenJob& job, int64_t b,
                                 const T* from, T* to, bool rotates) {
    const int64_t half = rotates ? job.half : 0;
    if (half > 0) {
      const int64_t row = job.positions[b] * half;
      const auto* const cosines = static_cast<const T*>(job.cos) + row;
      const auto* const sines = static_cast<const T*>(job.sin) + row;
      for_quads(block, half, [&](int64_t i) {
        const int64_t count = half - i;
        Quad first = load(from + i, count);
        Quad second = load(from + half + i, count);
        const Quad c = load(cosines + i, count);
        const Quad s = load(sines + i, count);
        for (int k = 0; k < kQuad; ++k) {
          const float a = first.at[k];
          first.at[k] = a * c.at[k] - second.at[k] * s.at[k];
          second.at[k] = second.at[k] * c.at[k] + a * s.at[k];
        }
        store_quad(first, to + i, count, is_quad_aligned(to + i));
        store_quad(second, to + half + i, count, is_quad_aligned(to + half + i));
      });
    }
    const T* const rest = from + 2 * half;
    T* const to_rest = to + 2 * half;
    const int64_t size = job.width - 2 * half;
    for_quads(block, size, [&](int64_t i) {
      store_quad(load(rest + i, size - i), to_rest + i, size - i, is_quad_aligned(to_rest + i));
    });
  }
  CLEAVE_DEVICE static Quad load(const T* from, int64_t count) {
    return load_quad(from, count, is_quad_aligned(from));
  }
};

/// A block computes one query head and part of its keys, in tiles of one key per thread. For each
/// tile, a thread first has one key, then four dims of the values of some keys.
template <class T>
struct DecodeAttentionKernel {
  static constexpr int kLeastBlocks = 4;
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const DecodeAttentionJob& job) const {
    const int64_t of_query = block.index() / job.num_parts;
    const int64_t b = of_query / job.heads;
    const int64_t kv_head = (of_query - b * job.heads + job.skipped) / job.group;
    const int64_t first_row = (b * job.kv_heads + kv_head) * job.capacity;
    const Memory memory(block, job.width);
    const T* const q = static_cast<const T*>(job.q) + of_query * job.width;
    for (int64_t i = block.thread(); i < job.width; i += block.threads()) {
      memory.query[i] = load_number(q + i) * job.scale;
    }
    block.sync();
    Keys keys = keys_of(job, b, block.index() - of_query * job.num_parts);
    keys.keys = static_cast<const T*>(job.keys) + first_row * job.width;
    keys.values = static_cast<const T*>(job.values) + first_row * job.width;
    Sums sums;
    for (; keys.begin < keys.end; keys.begin += block.threads()) {
      add_tile(block, job, memory, keys, sums);
    }
    finish(block, job, memory, sums, of_query);
  }

 private:
  /// How many quads a thread loads together: quads of several keys' values, or of one key. In fp32,
  /// more would need too many registers.
  static constexpr int kTogether = sizeof(T) == sizeof(uint16_t) ? 4 : 1;
  static constexpr int kOfKey = sizeof(T) == sizeof(uint16_t) ? 8 : 1;

  /// The block's shared memory, after that of over_block().
  struct Memory {
    template <class Block>
    CLEAVE_DEVICE Memory(const Block& block, int64_t width)
        : query(reinterpret_cast<float*>(static_cast<char*>(block.shared()) + kOverBlockBytes)),
          weights(query + width),
          sums(weights + block.threads()),
          quads(static_cast<int>(parts_of(width, kQuad))),
          groups(block.threads() / quads),
          quad(block.thread() % quads),
          group(block.thread() / quads) {}
    float* query;    // [width], scaled
    float* weights;  // [threads]: of the tile's keys
    float* sums;     // [groups, 4 quads]
    int quads, groups;
    int quad, group;  // what this thread adds up; threads of group `groups` have nothing
  };
  struct Keys {
    const T *keys = nullptr, *values = nullptr;  // of the KV head
    int64_t begin = 0, end = 0;                  // those that this block still has to add
  };
  struct Sums {
    float top = -std::numeric_limits<float>::infinity();
    float weight = 0;
    Quad values{};
  };

  CLEAVE_DEVICE static Keys keys_of(const DecodeAttentionJob& job, int64_t b, int64_t part) {
    const int64_t end = *job.num_keys;
    int64_t begin = job.first_key == nullptr ? 0 : job.first_key[b];
    if (job.window > 0 && end - job.window > begin) begin = end - job.window;
    const int64_t size = parts_of(end - begin, job.num_parts);
    const int64_t own = begin + part * size;
    return {.begin = own, .end = own + size < end ? own + size : end};
  }

  CLEAVE_DEVICE static float score(const DecodeAttentionJob& job, const float* query,
                                   const T* key) {
    constexpr int64_t kStep = int64_t{kOfKey} * kQuad;
    const bool is_aligned = is_quad_aligned(key);
    float dot = 0;
    int64_t i = 0;
    CLEAVE_NOT_UNROLLED
    for (; is_aligned && i + kStep <= job.width; i += kStep) {
      QuadWords<T> k[size_t{kOfKey}];
      for (int a = 0; a < kOfKey; ++a) k[a] = load_words(key + i + a * kQuad, kQuad, true);
      for (int a = 0; a < kOfKey; ++a) {
        const Quad numbers = k[a].numbers();
        for (int j = 0; j < kQuad; ++j) {
          dot = std::fma(query[i + int64_t{a} * kQuad + j], numbers.at[j], dot);
        }
      }
    }
    CLEAVE_NOT_UNROLLED
    for (; i < job.width; i += kQuad) {
      const Quad k = load_quad(key + i, job.width - i, is_aligned);
      for (int j = 0; j < kQuad && i + j < job.width; ++j)
        dot = std::fma(query[i + j], k.at[j], dot);
    }
    return job.soft_cap > 0 ? job.soft_cap * std::tanh(dot / job.soft_cap) : dot;
  }

  template <class Block>
  CLEAVE_DEVICE static void add_tile(const Block& block, const DecodeAttentionJob& job,
                                     const Memory& memory, const Keys& keys, Sums& sums) {
    const int64_t left = keys.end - keys.begin;
    const int64_t count = left < block.threads() ? left : block.threads();
    const int64_t first = keys.begin * job.width;
    const bool has_key = block.thread() < count;
    const float own = has_key
                          ? score(job, memory.query, keys.keys + first + block.thread() * job.width)
                          : -std::numeric_limits<float>::infinity();
    const float of_tile = over_block(block, own, [](float a, float b) { return a > b ? a : b; });
    const float top = of_tile > sums.top ? of_tile : sums.top;
    const float weight = has_key ? exp_for<T>(own - top) : 0;
    memory.weights[block.thread()] = weight;
    const float total = sum_over_block(block, weight);  // its barriers publish the weights
    const float kept = exp_for<T>(sums.top - top);
    sums.top = top;
    sums.weight = std::fma(sums.weight, kept, total);
    for (float& v : sums.values.at) v *= kept;
    if (memory.group >= memory.groups) return;
    const int64_t i = int64_t{kQuad} * memory.quad;
    const auto load = [&](int64_t key) {
      const T* const from = keys.values + first + key * job.width + i;
      return load_words(from, job.width - i, is_quad_aligned(from));
    };
    const auto add = [&](int64_t key, const QuadWords<T>& words) {
      const Quad v = words.numbers();
      const float of_key = memory.weights[key];
      for (int k = 0; k < kQuad; ++k) {
        sums.values.at[k] = std::fma(of_key, v.at[k], sums.values.at[k]);
      }
    };
    int64_t key = memory.group;
    const int64_t groups = memory.groups;
    CLEAVE_NOT_UNROLLED
    for (; key + (kTogether - 1) * groups < count; key += kTogether * groups) {
      QuadWords<T> v[size_t{kTogether}];
      for (int a = 0; a < kTogether; ++a) v[a] = load(key + a * groups);
      for (int a = 0; a < kTogether; ++a) add(key + a * groups, v[a]);
    }
    CLEAVE_NOT_UNROLLED
    for (; key < count; key += groups) add(key, load(key));
  }

  /// Adds the groups' sums in order. One part of all keys is the result, else an entry of `parts`.
  template <class Block>
  CLEAVE_DEVICE static void finish(const Block& block, const DecodeAttentionJob& job,
                                   const Memory& memory, const Sums& sums, int64_t of_query) {
    const int64_t stride = int64_t{kQuad} * memory.quads;
    if (memory.group < memory.groups) {
      float* const to = memory.sums + memory.group * stride + int64_t{kQuad} * memory.quad;
      for (int k = 0; k < kQuad; ++k) to[k] = sums.values.at[k];
    }
    block.sync();
    float* const part = job.parts + block.index() * (job.width + 2);
    for (int64_t i = block.thread(); i < job.width; i += block.threads()) {
      float total = 0;
      for (int group = 0; group < memory.groups; ++group) total += memory.sums[group * stride + i];
      if (job.num_parts > 1) {
        part[2 + i] = total;
      } else {
        store_number(total / sums.weight, static_cast<T*>(job.out) + of_query * job.width + i);
      }
    }
    if (job.num_parts == 1 || block.thread() != 0) return;
    part[0] = sums.top;
    part[1] = sums.weight;
  }
};

/// A block for each query head: the sum of the parts.
template <class T>
struct SumDecodePartsKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const DecodeAttentionJob& job) const {
    const int64_t stride = job.width + 2;
    const float* const parts = job.parts + block.index() * job.num_parts * stride;
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t p = 0; p < job.num_parts; ++p) {
      if (parts[p * stride] > top) top = parts[p * stride];
    }
    for (int64_t i = block.thread(); i < job.width; i += block.threads()) {
      float sum = 0;
      float weight = 0;
      for (int64_t p = 0; p < job.num_parts; ++p) {
        const float* const part = parts + p * stride;
        if (part[1] == 0) continue;  // it had no keys
        const float scale = exp_for<T>(part[0] - top);
        weight = std::fma(part[1], scale, weight);
        sum = std::fma(part[2 + i], scale, sum);
      }
      store_number(sum / weight, static_cast<T*>(job.out) + block.index() * job.width + i);
    }
  }
};

/// A grid for each part of each query head's keys.
constexpr Grid grid_of_decode(const DecodeAttentionJob& job) {
  const int64_t floats = job.width + kMostThreads + int64_t{kQuad} * kMostThreads;
  return {.blocks = job.batch * job.heads * job.num_parts,
          .threads = kMostThreads,
          .shared_bytes = kOverBlockBytes + floats * static_cast<int64_t>(sizeof(float))};
}

/// A warp for each column of the result, of at most kRows rows.
template <class T, size_t kRows>
struct FewRowsKernel {
  static constexpr bool kReadsEarly = sizeof(T) == sizeof(uint16_t);  // fp32: too many registers
  static constexpr int kLeastBlocks = kReadsEarly ? 4 : 0;
  static constexpr bool kWaitsItself = true;
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const DeviceFewRowsJob& job) const {
    const int lane = block.thread() % kWarp;
    const int64_t n = block.index() * (block.threads() / kWarp) + block.thread() / kWarp;
    const bool is_column = n < job.out;
    const T* const column = static_cast<const T*>(job.weight) + (is_column ? n : 0) * job.in;
    constexpr int64_t kStep = static_cast<int64_t>(kPack) * kWarp;
    float sums[kRows]{};
    int64_t i = static_cast<int64_t>(kPack) * lane;
    bool has_waited = true;
    if (kReadsEarly && job.is_weight_ready) {
      has_waited = false;
    } else {
      block.wait_for_earlier();
    }
    const auto wait = [&] {
      if (kReadsEarly && !has_waited) block.wait_for_earlier();
      has_waited = true;
    };
    for (; i + (kAhead - 1) * kStep < job.in; i += kAhead * kStep) {
      Pack w[kAhead];
      for (int a = 0; a < kAhead; ++a) w[a] = load_aligned<Pack>(column + i + a * kStep);
      wait();  // the weight's first part comes while the kernel before still makes x
      for (int a = 0; a < kAhead; ++a) add(job, w[a], i + a * kStep, sums);
    }
    wait();
    for (; i < job.in; i += kStep) add(job, load_aligned<Pack>(column + i), i, sums);
    for (float& sum : sums) {
      for (int mask = 1; mask < kWarp; mask *= 2) sum += block.exchange(sum, mask);
    }
    if (is_column && lane == 0) store(job, n, sums);
  }

 private:
  static constexpr size_t kPack = 16 / sizeof(T);  // numbers of one access
  struct Pack {
    T at[kPack];
  };
  /// Writes the sums of column n.
  CLEAVE_DEVICE static void store(const DeviceFewRowsJob& job, int64_t n,
                                  const float (&sums)[kRows]) {
    const float added = job.bias == nullptr ? 0 : load_number(static_cast<const T*>(job.bias) + n);
    for (size_t r = 0; r < kRows; ++r) {
      const auto row = static_cast<int64_t>(r);
      if (row < job.rows) {
        store_number(sums[r] + added, static_cast<T*>(job.y) + row * job.out + n);
      }
    }
  }
  /// Adds the products of a part of a column with the same part of each row.
  CLEAVE_DEVICE static void add(const DeviceFewRowsJob& job, const Pack& w, int64_t i,
                                float (&sums)[kRows]) {
    for (size_t r = 0; r < kRows; ++r) {
      const auto row = static_cast<int64_t>(r);
      if (kRows > 1 && row >= job.rows) continue;
      const Pack x = load_aligned<Pack>(static_cast<const T*>(job.x) + row * job.in + i);
      for (size_t k = 0; k < kPack; ++k) {
        sums[r] = std::fma(load_number(w.at + k), load_number(x.at + k), sums[r]);
      }
    }
  }
};
template <class T>
using OneRowKernel = FewRowsKernel<T, 1>;
template <class T>
using SomeRowsKernel = FewRowsKernel<T, kMostDeviceRows>;

/// A grid with a warp for each of `out` columns.
constexpr Grid grid_of_columns(int64_t out) {
  return {.blocks = parts_of(out, kMostThreads / kWarp), .threads = kMostThreads};
}

}  // namespace cleave::inline kernels
