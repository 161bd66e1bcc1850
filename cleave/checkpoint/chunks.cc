#include "cleave/checkpoint/chunks.h"

#include <algorithm>
#include <utility>

namespace cleave {

void for_each_chunk(const TensorInfo& tensor, const std::vector<Slice>& slices,
                    const std::function<void(const std::vector<Slice>&)>& take) {
  const uint64_t bytes = block_bytes(tensor, slices);
  if (bytes <= kChunkBytes || tensor.shape.empty()) return take(slices);
  std::vector<Slice> piece = slices;
  auto rows = std::find_if(piece.begin(), piece.end(), [](const Slice& s) { return s.dim == 0; });
  if (rows == piece.end()) rows = piece.insert(rows, {0, {{0, tensor.shape[0]}}});
  const std::vector<Range> ranges = std::exchange(rows->ranges, {});
  uint64_t num_rows = 0;
  for (const Range& range : ranges) num_rows += static_cast<uint64_t>(range.size());
  const auto most = static_cast<int64_t>(std::max<uint64_t>(1, kChunkBytes * num_rows / bytes));
  int64_t held = 0;
  for (Range left : ranges) {
    while (left.size() > 0) {
      const int64_t now = std::min(left.size(), most - held);
      rows->ranges.push_back({left.begin, left.begin + now});
      left.begin += now;
      held += now;
      if (held < most) continue;
      take(piece);
      rows->ranges.clear();
      held = 0;
    }
  }
  if (held > 0) take(piece);
}

}  // namespace cleave
