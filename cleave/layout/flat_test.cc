#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/layout/shard_geometry.h"

namespace cleave::flat_test {
namespace {

/// The elements of `boxes` of a tensor, concatenated.
at::Tensor joined(const at::Tensor& t, const std::vector<Box>& boxes) {
  std::vector<at::Tensor> parts{at::empty({0}, t.options())};
  for (const Box& box : boxes) {
    at::Tensor part = t;
    for (size_t d = 0; d < box.size(); ++d) {
      EXPECT_GT(box[d].size(), 0);
      part = part.narrow(static_cast<int64_t>(d), box[d].begin, box[d].size());
    }
    parts.push_back(part.flatten());
  }
  return at::cat(parts);
}

TEST(FlatBoxes, EveryRangeOfSmallTensors_IsTheFlattenedSlice) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {5}, {3, 4}, {2, 3, 4}, {1, 1, 7}, {4, 1}}) {
    const at::Tensor t = at::arange(c10::multiply_integers(shape)).view(shape);
    for (int64_t begin = 0; begin <= t.numel(); ++begin) {
      for (int64_t end = begin; end <= t.numel(); ++end) {
        const auto boxes = flat_boxes(shape, {begin, end});
        EXPECT_TRUE(at::equal(joined(t, boxes), t.flatten().narrow(0, begin, end - begin)))
            << c10::IntArrayRef(shape) << " " << begin << ".." << end;
        EXPECT_LE(boxes.size(), std::max<size_t>(1, 2 * shape.size()) - (shape.empty() ? 0 : 1));
      }
    }
  }
}

TEST(FlatShard, SizesThatDoNotDivide_CoverEverythingOnceWithinOne) {
  for (int64_t size = 0; size < 20; ++size) {
    int64_t at = 0;
    for (int r = 0; r < 6; ++r) {
      const Range range = flat_shard(size, r, 6);
      EXPECT_EQ(range.begin, at);
      EXPECT_LE(std::abs(range.size() * 6 - size), 6);
      at = range.end;
    }
    EXPECT_EQ(at, size);
  }
}

}  // namespace
}  // namespace cleave::flat_test
