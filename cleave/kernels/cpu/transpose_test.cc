#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/kernels/cpu/reorder.h"

namespace cleave::transpose_test {
namespace {

template <class T>
class Transpose : public testing::Test {
 protected:
  /// Transposes `rows` rows in two parts to memory `shift` elements after an aligned address.
  /// Checks all elements, and that the padding after each row of the result is unchanged.
  static void expect_transposed(int64_t rows, int64_t columns, int64_t more, int64_t shift) {
    SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", " << more << ", " << shift);
    constexpr T kUntouched = 65521;  // more than any element
    std::vector<T> from(static_cast<size_t>(rows * (columns + more)));
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i % 65521);  // a prime
    constexpr size_t kBorder = 64;
    std::vector<T> memory(static_cast<size_t>((rows + more) * columns) + 2 * kBorder, kUntouched);
    void* aligned = memory.data();
    size_t space = memory.size() * sizeof(T);
    std::align(kBorder, sizeof(T), aligned, space);
    T* to = static_cast<T*>(aligned) + shift;
    const TransposeJob<T> job{.columns = columns,
                              .from = from.data(),
                              .from_stride = columns + more,
                              .to = to,
                              .to_stride = rows + more};
    const int64_t middle = rows / 2 / 16 * 16;  // as threads divide the work
    transpose_rows(job, 0, middle);
    transpose_rows(job, middle, rows);
    int64_t wrong = 0;
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = 0; r < rows + more; ++r) {
        const T want = r < rows ? from[static_cast<size_t>(r * (columns + more) + c)] : kUntouched;
        wrong += to[c * (rows + more) + r] == want ? 0 : 1;
      }
    }
    EXPECT_EQ(wrong, 0);
  }
};
using Elements = testing::Types<float, uint16_t>;
TYPED_TEST_SUITE(Transpose, Elements);

TYPED_TEST(Transpose, AnySizeAndAlignment_IsTransposed) {
  for (const int64_t rows : {1, 7, 15, 16, 100, 300}) {
    for (const int64_t columns : {1, 17, 64, 130}) {
      for (const int64_t more : {0, 3}) this->expect_transposed(rows, columns, more, 1);
    }
  }
}

// More than 16 MiB and aligned: writes bypass the caches.
TYPED_TEST(Transpose, LargeAndAligned_IsTransposed) {
  this->expect_transposed(1024, 8400, 0, 0);
  this->expect_transposed(1000, 8400, 8, 0);  // not a multiple of the vector size
  this->expect_transposed(1024, 8400, 0, 4);  // not aligned
}

}  // namespace
}  // namespace cleave::transpose_test
