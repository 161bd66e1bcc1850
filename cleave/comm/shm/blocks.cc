#include "cleave/comm/shm/blocks.h"

#include <algorithm>
#include <cstring>

namespace cleave::inline comm {
namespace {

/// Calls move(offset in the whole matrix, offset in the packed piece, bytes) for each contiguous
/// part of a row.
template <class Move>
void for_each_part(const Blocks& blocks, int member, int64_t from, int64_t size, const Move& move) {
  const int64_t width = blocks.row_bytes(member);
  for (int64_t done = 0; done < size;) {
    const int64_t row = (from + done) / width, column = (from + done) % width;
    const int64_t bytes = std::min(size - done, width - column);
    move(row * blocks.whole_row_bytes() + blocks.begin(member) + column, done,
         static_cast<size_t>(bytes));
    done += bytes;
  }
}

}  // namespace

Blocks::Blocks(int64_t rows, std::span<const int64_t> widths, int64_t item_bytes) : rows_(rows) {
  for (const int64_t width : widths) {
    begins_.push_back(whole_);
    bytes_.push_back(width * item_bytes);
    whole_ += width * item_bytes;
  }
}

int64_t Blocks::max_block_bytes() const {
  return rows_ * *std::max_element(bytes_.begin(), bytes_.end());
}

void Blocks::pack(const std::byte* whole, int member, int64_t from,
                  std::span<std::byte> packed) const {
  for_each_part(*this, member, from, static_cast<int64_t>(packed.size()),
                [&](int64_t at, int64_t done, size_t bytes) {
                  std::memcpy(packed.data() + done, whole + at, bytes);
                });
}

void Blocks::unpack(std::byte* whole, int member, int64_t from,
                    std::span<const std::byte> packed) const {
  for_each_part(*this, member, from, static_cast<int64_t>(packed.size()),
                [&](int64_t at, int64_t done, size_t bytes) {
                  std::memcpy(whole + at, packed.data() + done, bytes);
                });
}

}  // namespace cleave::inline comm
