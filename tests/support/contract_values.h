#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <ostream>
#include <vector>

#include "cleave/base/dtype.h"
#include "tests/support/float16.h"

namespace cleave::inline comm {

/// Elements of any dtype for tests of collectives, set as doubles.
class Values {
 public:
  Values(DType dtype, int64_t count)
      : dtype_(dtype), bytes_(static_cast<size_t>(count * item_bytes(dtype)), std::byte{0x5a}) {}

  /// Element i is f(i).
  Values(DType dtype, int64_t count, const std::function<double(int64_t)>& f)
      : Values(dtype, count) {
    for (int64_t i = 0; i < count; ++i) set(i, f(i));
  }

  [[nodiscard]] std::byte* data() { return bytes_.data(); }
  [[nodiscard]] int64_t count() const {
    return static_cast<int64_t>(bytes_.size()) / item_bytes(dtype_);
  }

  void set(int64_t i, double value) {
    switch (dtype_) {
      case DType::kF32:
        return store(i, static_cast<float>(value));
      case DType::kF64:
        return store(i, value);
      case DType::kBf16:
        return store(i, fp32_to_bf16(static_cast<float>(value)));
      case DType::kF16:
        return store(i, fp32_to_fp16(static_cast<float>(value)));
      case DType::kI64:
        return store(i, static_cast<int64_t>(value));
      default:
        return store(i, static_cast<uint8_t>(value));
    }
  }

  bool operator==(const Values& other) const = default;
  /// Whether the first `count` elements equal those of `other`.
  [[nodiscard]] bool begins_as(const Values& other, int64_t count) const {
    return std::equal(bytes_.begin(), bytes_.begin() + count * item_bytes(dtype_),
                      other.bytes_.begin());
  }

 private:
  template <class T>
  void store(int64_t i, T value) {
    std::memcpy(bytes_.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }

  DType dtype_;
  std::vector<std::byte> bytes_;
};

/// For gtest: prints only the count, because all bytes would fill the screen.
inline void PrintTo(const Values& values, std::ostream* out) {
  *out << values.count() << " values";
}

}  // namespace cleave::inline comm
