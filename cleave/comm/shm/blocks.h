#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cleave::inline comm {

/// Byte geometry of a matrix [rows, sum(widths)] whose columns are sharded over members.
class Blocks {
 public:
  Blocks(int64_t rows, std::span<const int64_t> widths, int64_t item_bytes);

  [[nodiscard]] int64_t rows() const { return rows_; }
  [[nodiscard]] int num_members() const { return static_cast<int>(bytes_.size()); }
  /// Bytes of one row of a member's block, and of a row of the whole matrix.
  [[nodiscard]] int64_t row_bytes(int member) const { return bytes_[static_cast<size_t>(member)]; }
  [[nodiscard]] int64_t whole_row_bytes() const { return whole_; }
  /// Byte offset of a member's columns in a row of the whole matrix.
  [[nodiscard]] int64_t begin(int member) const { return begins_[static_cast<size_t>(member)]; }
  /// Bytes of a member's packed block.
  [[nodiscard]] int64_t block_bytes(int member) const { return rows_ * row_bytes(member); }
  /// Bytes of the largest block.
  [[nodiscard]] int64_t max_block_bytes() const;

  /// Copy bytes [from, from + packed.size()) of a member's packed block out of the whole matrix
  /// (pack) or into it (unpack).
  void pack(const std::byte* whole, int member, int64_t from, std::span<std::byte> packed) const;
  void unpack(std::byte* whole, int member, int64_t from, std::span<const std::byte> packed) const;

 private:
  int64_t rows_;
  int64_t whole_ = 0;
  std::vector<int64_t> bytes_, begins_;
};

}  // namespace cleave::inline comm
