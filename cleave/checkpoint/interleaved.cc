#include <algorithm>
#include <cstring>
#include <vector>

#include "cleave/checkpoint/model_tensors.h"

namespace cleave::inline checkpoint {

int64_t interleaved_row(int64_t row, int64_t head_rows) {
  const int64_t within = row % head_rows, half = head_rows / 2;
  return row - within + (within < half ? 2 * within : 2 * (within - half) + 1);
}

// Reads the heads that overlap the block, then picks its rows.
void read_interleaved(const TensorSource& files, const StoredAs& stored,
                      std::span<const Slice> slices, std::span<std::byte> out) {
  const int64_t head_rows = stored.interleaved_rows;
  std::vector<Range> wanted = {{0, files.at(stored.name).shape[0]}};
  std::vector<Slice> stored_slices;  // of the other dims
  for (const Slice& slice : slices) {
    if (slice.dim == 0) {
      wanted = slice.ranges;
    } else {
      stored_slices.push_back(slice);
    }
  }
  std::vector<Range> heads;  // rows of whole heads
  for (const Range& range : wanted) {
    for (int64_t head = range.begin / head_rows; head * head_rows < range.end; ++head) {
      const Range rows = {head * head_rows, (head + 1) * head_rows};
      if (range.size() > 0 && (heads.empty() || heads.back().begin < rows.begin)) {
        heads.push_back(rows);
      }
    }
  }
  if (heads.empty()) return;
  stored_slices.push_back({0, heads});
  std::vector<std::byte> rows(block_bytes(files.at(stored.name), stored_slices));
  files.read_block(stored.name, stored_slices, rows);
  const size_t row_bytes = rows.size() / (heads.size() * static_cast<size_t>(head_rows));
  for (const Range& range : wanted) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      const auto head = std::partition_point(heads.begin(), heads.end(),
                                             [&](const Range& r) { return r.end <= row; });
      const int64_t place = interleaved_row(row, head_rows) - head->begin;
      const auto from = static_cast<size_t>((head - heads.begin()) * head_rows + place);
      std::memcpy(out.data(), rows.data() + from * row_bytes, row_bytes);
      out = out.subspan(row_bytes);
    }
  }
}

}  // namespace cleave::inline checkpoint
