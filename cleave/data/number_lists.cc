#include "cleave/data/number_lists.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>

#include "cleave/base/resource_limits.h"

namespace cleave::inline data {
namespace {

constexpr size_t kMostInMemory = size_t{4} << 20;
constexpr size_t kBlock = size_t{1} << 20;

}  // namespace

void SpilledBytes::append(std::span<const std::byte> bytes) {
  memory_.insert(memory_.end(), bytes.begin(), bytes.end());
  if (folder_.empty()) return;
  if (memory_.size() >= (file_.is_open() ? kBlock : kMostInMemory)) spill();
}

void SpilledBytes::spill() {
  if (!file_.is_open()) {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) throw_io(folder_.string(), "mkdir", error.value());
    reserve_descriptors(1, "data in many files");
    file_ = File::create_unnamed(folder_);
  }
  file_.write_at(file_bytes_, memory_);
  file_bytes_ += memory_.size();
  memory_ = {};
}

void SpilledBytes::read(uint64_t at, std::span<std::byte> out) const {
  const uint64_t in_file = at < file_bytes_ ? std::min<uint64_t>(file_bytes_ - at, out.size()) : 0;
  if (in_file > 0) file_.read_at(at, out.first(in_file));
  const auto rest = out.subspan(in_file);
  if (!rest.empty()) {
    std::memcpy(rest.data(), memory_.data() + (at + in_file - file_bytes_), rest.size());
  }
}

void SpilledBytes::add_to(Hasher& hasher) const {
  std::vector<std::byte> block;
  for (uint64_t at = 0; at < file_bytes_; at += block.size()) {
    block.resize(std::min<uint64_t>(kBlock, file_bytes_ - at));
    read(at, block);
    hasher.update(block);
  }
  hasher.update(memory_);
}

NumberLists::NumberLists(const std::filesystem::path& folder) : numbers_(folder), starts_(folder) {
  append({});
}

void NumberLists::append(std::span<const int32_t> list) {
  numbers_.append(std::as_bytes(list));
  const auto end = static_cast<int64_t>(numbers_.size() / sizeof(int32_t));
  starts_.append(std::as_bytes(std::span(&end, 1)));
}

int64_t NumberLists::size() const {
  return static_cast<int64_t>(starts_.size() / sizeof(int64_t)) - 1;
}

std::vector<int64_t> NumberLists::list(int64_t index) const {
  std::array<uint64_t, 2> range{};
  starts_.read(static_cast<uint64_t>(index) * sizeof(int64_t),
               std::as_writable_bytes(std::span(range)));
  std::vector<int32_t> numbers(range[1] - range[0]);
  numbers_.read(range[0] * sizeof(int32_t), std::as_writable_bytes(std::span(numbers)));
  return {numbers.begin(), numbers.end()};
}

}  // namespace cleave::inline data
