#include "cleave/comm/reduce.h"

#include <algorithm>
#include <cstring>

#include "cleave/comm/float16.h"

namespace cleave {
namespace {

constexpr int64_t kBlock = 1024;  // elements; the accumulator stays in the first-level cache

// How each dtype is stored and accumulated.
template <class T>
struct Plain {
  using Stored = T;
  using Accumulated = T;
  static T widen(T value) { return value; }
  static T narrow(T value) { return value; }
};

struct Bf16 {
  using Stored = uint16_t;
  using Accumulated = float;
  static float widen(uint16_t bits) { return bf16_to_fp32(bits); }
  static uint16_t narrow(float value) { return fp32_to_bf16(value); }
};

struct Fp16 {
  using Stored = uint16_t;
  using Accumulated = float;
  static float widen(uint16_t bits) { return fp16_to_fp32(bits); }
  static uint16_t narrow(float value) { return fp32_to_fp16(value); }
};

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Max {
  template <class T>
  static T apply(T a, T b) {
    return b > a || b != b ? b : a;
  }
};

template <class Kind, class Operation>
void reduce_block(std::span<const void* const> in, std::span<void* const> out, int64_t begin,
                  int64_t count) {
  using Stored = typename Kind::Stored;
  typename Kind::Accumulated sums[kBlock];
  const Stored* first = static_cast<const Stored*>(in[0]) + begin;
  for (int64_t i = 0; i < count; ++i) sums[i] = Kind::widen(first[i]);
  for (const void* other : in.subspan(1)) {
    const Stored* values = static_cast<const Stored*>(other) + begin;
    for (int64_t i = 0; i < count; ++i) {
      sums[i] = Operation::apply(sums[i], Kind::widen(values[i]));
    }
  }
  for (void* target : out) {
    Stored* values = static_cast<Stored*>(target) + begin;
    for (int64_t i = 0; i < count; ++i) values[i] = Kind::narrow(sums[i]);
  }
}

template <class Kind>
void reduce_all(std::span<const void* const> in, std::span<void* const> out, int64_t count,
                ReduceOp op) {
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    if (op == ReduceOp::kSum) {
      reduce_block<Kind, Sum>(in, out, begin, size);
    } else {
      reduce_block<Kind, Max>(in, out, begin, size);
    }
  }
}

// Integer sums wrap as unsigned numbers do; a maximum needs the sign.
template <class Signed, class Unsigned>
void reduce_integers(std::span<const void* const> in, std::span<void* const> out, int64_t count,
                     ReduceOp op) {
  if (op == ReduceOp::kSum) {
    reduce_all<Plain<Unsigned>>(in, out, count, op);
  } else {
    reduce_all<Plain<Signed>>(in, out, count, op);
  }
}

}  // namespace

bool can_reduce(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF64:
    case DType::kBf16:
    case DType::kF16:
    case DType::kI64:
    case DType::kI32:
      return true;
    default:
      return false;
  }
}

void reduce(std::span<const void* const> in, std::span<void* const> out, int64_t count, DType dtype,
            ReduceOp op) {
  switch (dtype) {
    case DType::kF32:
      return reduce_all<Plain<float>>(in, out, count, op);
    case DType::kF64:
      return reduce_all<Plain<double>>(in, out, count, op);
    case DType::kBf16:
      return reduce_all<Bf16>(in, out, count, op);
    case DType::kF16:
      return reduce_all<Fp16>(in, out, count, op);
    case DType::kI64:
      return reduce_integers<int64_t, uint64_t>(in, out, count, op);
    case DType::kI32:
      return reduce_integers<int32_t, uint32_t>(in, out, count, op);
    default:
      CLEAVE_BUG("reduce of ", name(dtype));
  }
}

}  // namespace cleave
