#include "cleave/format/block.h"

#include <random>

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace cleave::block_test {
namespace {

using test::thrown_by;

bool contains(const std::vector<Range>& ranges, int64_t index) {
  for (const Range& range : ranges) {
    if (index >= range.begin && index < range.end) return true;
  }
  return false;
}

/// Offsets of all bytes of a block, by testing every element of the tensor.
std::vector<uint64_t> offsets_by_element(const std::vector<int64_t>& shape, int64_t item,
                                         const std::vector<Slice>& slices) {
  uint64_t count = 1;
  for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
  std::vector<uint64_t> offsets;
  for (uint64_t element = 0; element < count; ++element) {
    std::vector<int64_t> index(shape.size());
    uint64_t rest = element;
    for (size_t dim = shape.size(); dim-- > 0;) {
      index[dim] = static_cast<int64_t>(rest % static_cast<uint64_t>(shape[dim]));
      rest /= static_cast<uint64_t>(shape[dim]);
    }
    bool inside = true;
    for (const Slice& slice : slices) {
      inside = inside && contains(slice.ranges, index[static_cast<size_t>(slice.dim)]);
    }
    for (int64_t byte = 0; inside && byte < item; ++byte) {
      offsets.push_back(element * static_cast<uint64_t>(item) + static_cast<uint64_t>(byte));
    }
  }
  return offsets;
}

void expect_walk_is_right(const std::vector<int64_t>& shape, int64_t item,
                          const std::vector<Slice>& slices) {
  const auto want = offsets_by_element(shape, item, slices);
  BlockWalk walk(shape, item, slices);
  EXPECT_EQ(walk.bytes(), want.size());
  EXPECT_EQ(walk.end(), want.empty() ? 0 : want.back() + 1);
  std::vector<uint64_t> got;
  uint64_t last_end = UINT64_MAX;
  while (const auto piece = walk.next()) {
    EXPECT_NE(piece->offset, last_end) << "adjacent pieces must be joined";
    last_end = piece->offset + piece->bytes;
    for (uint64_t i = 0; i < piece->bytes; ++i) got.push_back(piece->offset + i);
  }
  EXPECT_EQ(got, want);
  EXPECT_FALSE(walk.next());
}

TEST(BlockWalk, RandomSlicesOfRandomShapes_GiveTheBytesOfTheirElements) {
  std::mt19937 random(1);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int round = 0; round < 400; ++round) {
    std::vector<int64_t> shape(static_cast<size_t>(below(5)));
    for (int64_t& size : shape) size = below(6);
    std::vector<Slice> slices;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      if (below(2) == 0) continue;
      Slice slice{static_cast<int64_t>(dim), {}};
      for (int64_t at = 0; at < shape[dim];) {
        const int64_t begin = at + below(2);
        at = std::min(begin + below(4), shape[dim]);
        if (begin <= at) slice.ranges.push_back({begin, at});
        at = std::max(at, begin);
        if (slice.ranges.empty() || slice.ranges.back().size() == 0) ++at;
      }
      slices.insert(below(2) == 0 ? slices.begin() : slices.end(), slice);
    }
    SCOPED_TRACE(round);
    expect_walk_is_right(shape, 1 + below(4), slices);
  }
}

TEST(BlockWalk, WholeTensor_IsOnePiece) {
  const std::vector<int64_t> shape = {3, 4, 5};
  const std::vector<std::vector<Slice>> wholes = {
      {}, {{1, {{0, 4}}}}, {{0, {{0, 1}, {1, 3}}}}, {{2, {{0, 5}}}, {0, {{0, 3}}}}};
  for (const auto& slices : wholes) {
    BlockWalk walk(shape, 2, slices);
    const auto piece = walk.next();
    ASSERT_TRUE(piece);
    EXPECT_EQ(piece->offset, 0u);
    EXPECT_EQ(piece->bytes, 120u);
    EXPECT_FALSE(walk.next());
  }
}

TEST(BlockWalk, InvalidSlices_AreRefused) {
  const std::vector<int64_t> shape = {3, 4};
  const std::vector<std::vector<Slice>> wrong = {
      {{2, {{0, 1}}}},         {{-1, {{0, 1}}}},
      {{0, {{0, 4}}}},         {{0, {{2, 1}}}},
      {{0, {{1, 2}, {0, 1}}}}, {{0, {{0, 2}, {1, 3}}}},
      {{0, {{-1, 1}}}},        {{0, {{0, 1}}}, {0, {{0, 1}}}},
  };
  for (const auto& slices : wrong) {
    EXPECT_EQ(thrown_by([&] { BlockWalk(shape, 4, slices); }).code(), Code::kUsage);
  }
}

TEST(NumElements, OverflowAndNegativeSizes_AreFormatErrors) {
  EXPECT_EQ(num_elements(std::vector<int64_t>{}, "t"), 1u);
  EXPECT_EQ(num_elements(std::vector<int64_t>{7, 0, 3}, "t"), 0u);
  const std::vector<int64_t> huge = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_EQ(thrown_by([&] { num_elements(huge, "t"); }).code(), Code::kFormat);
  EXPECT_EQ(thrown_by([] { num_elements(std::vector<int64_t>{-1}, "t"); }).code(), Code::kFormat);
}

}  // namespace
}  // namespace cleave::block_test
